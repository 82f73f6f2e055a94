# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Files that the user has named for results.

Invariant: a regular file contains either the whole new result or its previous contents. Other files, such as
devices and pipes, are written to and never replaced; links are followed, and ``-`` is standard output.
``require_writable`` finds a path that cannot be written before anything is run.
"""

import os
import stat
import sys
import tempfile
from pathlib import Path

from .errors import LabError

_STANDARD = (Path("-"), Path("/dev/stdout"))


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


def _resolved(target: Path) -> Path:
    try:
        return target.resolve()
    except (OSError, RuntimeError) as error:
        raise LabError(f"cannot write {target}: its links lead in a circle") from error


def _is_special(target: Path) -> bool:
    """Whether the path exists and is not a regular file."""
    try:
        return not stat.S_ISREG(target.stat().st_mode)
    except OSError:
        return False


def _try(folder: Path, target: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LabError(f"cannot write {target}: {error.strerror}") from error


def _replace(place: Path, content: bytes) -> None:
    # Others may read a result, unlike a temporary file by default.
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o644
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
