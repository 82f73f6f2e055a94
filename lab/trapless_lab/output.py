# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Files that the user has named for results.

Invariant: a regular file contains either the whole new result or its previous contents, and keeps its
permissions and, if root writes, its owner. Other files, such as devices and pipes, are written to and never
replaced, and ``-`` is standard output. Links are followed by the kernel, which may refuse to
(fs.protected_symlinks): root must not write where somebody else's link in /tmp leads. ``require_writable``
finds a path that cannot be written before anything is run. A result that could not be written all the same is
kept in the folder for temporary files (``write_or_rescue``). That standard output cannot be written is an
OSError like another's (``Terminal``), so that what else was to be written still is. A folder of kept results
has one writer at a time (``alone``), for each would make what the other is making, and write over it.
"""

import contextlib
import errno
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from .errors import LabError

_STANDARD = (Path("-"), Path("/dev/stdout"))


class Terminal(Console):
    """Where a person reads; rich's own ends the program if a reader, such as head, has left."""

    def on_broken_pipe(self) -> None:
        """Raise what rich caught."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def open_standard() -> None:
    """Give the standard files that the caller has closed to nobody else.

    The next file that is opened would get their number, and what a program prints. Standard output cannot be
    written afterwards, as it could not before; what goes to standard error is lost.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest number that is free: this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def give_up_standard() -> None:
    """Write what standard output is still to get to nowhere: it cannot be written."""
    with contextlib.suppress(OSError, ValueError):  # a test's is no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def is_standard(target: Path | None) -> bool:
    """Whether a result goes to standard output, to which nothing else may then be written."""
    return target in _STANDARD


def require_writable(target: Path) -> None:
    """Refuse a path that ``write`` could not write."""
    if is_standard(target):
        return
    if target.is_dir():
        raise LabError(f"{target} is a directory, not a file")
    if _is_special(target):
        if not os.access(target, os.W_OK):
            raise LabError(f"cannot write {target}: Permission denied")
        return
    place = _resolved(target)
    if not place.parent.is_dir():
        raise LabError(f"cannot write {target}: {place.parent} is not a directory")
    _try(place.parent, target)


def require_folder(target: Path) -> None:
    """Create a folder for results, or refuse a path that cannot be one."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot write to {target}: {error.strerror}") from error
    _try(target, target)


@contextlib.contextmanager
def alone(folder: Path, doing: str) -> Iterator[None]:
    """Hold a folder's lock, which ends with its process; ``doing``: what another one that holds it would do.

    Raises LabError if another process, or this one, holds it.
    """
    require_folder(folder)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"{folder} is in use: {doing}") from None
        yield


def write(target: Path, content: bytes) -> None:
    """Write a result."""
    try:
        if is_standard(target):
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        elif _is_special(target):
            with target.open("wb") as file:
                file.write(content)
        else:
            _replace(_resolved(target), content)
    except OSError as error:
        raise LabError(f"cannot write {target}: {error.strerror}") from error


def write_or_rescue(target: Path, content: bytes) -> None:
    """Write a result that took minutes; if its path cannot be written any more, keep it elsewhere."""
    try:
        write(target, content)
    except LabError as error:
        raise LabError(f"{error}; {_rescued(target, content)}") from error


def _rescued(target: Path, content: bytes) -> str:
    try:
        with tempfile.NamedTemporaryFile(prefix="trapless-lab.", suffix=target.suffix, delete=False) as file:
            try:
                file.write(content)
                file.flush()
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        return f"and it cannot be kept in {tempfile.gettempdir()}: {error.strerror}"
    return f"it is in {file.name}"


def _resolved(target: Path) -> Path:
    """Return the name of the regular file behind a path; one that is no link may not exist."""
    try:
        if not target.exists() and not target.is_symlink():
            return target
        # Where a link leads to no file yet, an empty one is made.
        flags = os.O_PATH if target.exists() else os.O_WRONLY | os.O_CREAT
        file = os.open(target, flags, 0o644)
        try:
            return Path(f"/proc/self/fd/{file}").readlink()
        finally:
            os.close(file)
    except (OSError, RuntimeError) as error:
        raise LabError(f"cannot write {target}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _is_special(target: Path) -> bool:
    """Whether the path exists and is to be written as it is: no regular file, or an open one (/dev/fd/1)."""
    try:
        return not stat.S_ISREG(target.stat().st_mode) or _is_descriptor(target)
    except OSError:
        return False


def _is_descriptor(target: Path) -> bool:
    for _ in range(40):  # as many links as the kernel follows; it has followed these
        if target.parent.resolve().is_relative_to("/proc"):
            return True
        if not target.is_symlink():
            return False
        target = target.parent / target.readlink()
    return False


def _try(folder: Path, target: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LabError(f"cannot write {target}: {error.strerror}") from error


def _replace(place: Path, content: bytes) -> None:
    old = place.stat() if place.exists() else None
    # Others may read a result, unlike a temporary file by default.
    mode = stat.S_IMODE(old.st_mode) if old else 0o644
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            new = temporary.stat()
            if old and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                # Only root can give a file away; whoever else may replace it becomes its owner.
                with contextlib.suppress(PermissionError):
                    os.chown(temporary, old.st_uid, old.st_gid)
            temporary.chmod(mode)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
