# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trackers.

Invariant: what a collect has found is given to the caller, whole. If reading it out is cut short
(KeyboardInterrupt, MemoryError), it is lost, and so the tracker ends: no later collect passes for
a complete one.
"""

import errno
import mmap
import os
import threading
import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import _library
from .errors import BadRange, Error
from .extent import Extent, Reason

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def track(
    pid: int | None = None,
    *,
    watch: Iterable[tuple[int, int]] | None = None,
    backend: str = "auto",
    userfaultfd: int | None = None,
) -> "Tracker":
    """Track process ``pid``, or the calling one if it is None. Leave the ``with`` and it runs on untracked.

    ``watch`` has ranges, each an address and a length in bytes, both multiples of the page size. Without it
    all memory of another process is watched; of the calling one nothing, until ``Tracker.watch`` says so. The
    content of a range when it is watched is the baseline: copy it first, then what each collect reports.

    ``backend`` is one of the names in ``survey()``, or ``"auto"``: the cheapest that works here.
    ``userfaultfd`` is a descriptor that the process has made itself and handed over, for a process that may
    not be made to do so now (``dirty_open_fd`` in dirty(3)); it stays the caller's to close.
    """
    tracker = Tracker(pid, backend=backend, userfaultfd=userfaultfd)
    try:
        if watch is not None:
            for start, length in watch:
                tracker.watch(start, length)
        elif pid is not None:
            tracker.watch_all()
    except BaseException:
        tracker.close()
        raise
    return tracker


def pages_of(memory: "WriteableBuffer") -> tuple[int, int]:
    """Return address and length of the pages in which a buffer lies, for ``Tracker.watch``.

    Anything that is writable in place: ``mmap.mmap``, ``bytearray``, an array of numpy. What else lies in its
    first and last page is watched as well; a ``mmap.mmap`` has its pages for itself.
    """
    with memoryview(memory) as view:
        if view.nbytes == 0:
            raise ValueError("an empty buffer lies in no page")
        address = int(_library.ffi.cast("uintptr_t", _library.ffi.from_buffer(view)))
        start = address - address % mmap.PAGESIZE
        end = address + view.nbytes + -(address + view.nbytes) % mmap.PAGESIZE
    return start, end - start


class Tracker:
    """Watches ranges of one process; ``collect`` says which of their pages were written.

    Any thread may call any method. A forked child cannot use the tracker of its parent.
    """

    def __init__(
        self, pid: int | None = None, *, backend: str = "auto", userfaultfd: int | None = None
    ) -> None:
        """Watch nothing yet; see ``track``."""
        self._handle: int | None = None
        self._why_closed = "this tracker is closed"
        self._lock = threading.Lock()
        self._owner = os.getpid()
        if pid is not None and pid <= 0:
            raise ValueError(f"{pid} is no process; None is the calling one")
        if userfaultfd is None:
            self._handle = _library.call("dirty_open", pid or 0, _library.name(backend), 0)
        elif backend in ("auto", "uffd-async"):
            self._handle = _library.call("dirty_open_fd", pid or 0, userfaultfd)
        else:
            raise ValueError(f"a userfaultfd that was handed over is for uffd-async, not for {backend}")
        self.pid = pid
        """The process; None: the calling one."""
        self.backend = _library.text(_library.function("dirty_backend")(self._handle))
        """The name of the back end at work."""

    def __repr__(self) -> str:
        whose = "this process" if self.pid is None else f"process {self.pid}"
        return f"<libdirty.Tracker of {whose}, {'closed' if self._handle is None else self.backend}>"

    def watch(self, start: int, length: int) -> None:
        """Watch pages. Their content at return is the baseline: later writes are reported.

        Nothing needs to be mapped there yet: what appears later is reported and watched.
        """
        _library.call("dirty_watch", self._open(), *_range(start, length))

    def watch_all(self) -> None:
        """Watch all memory that is not watched already: what the process has mapped, and will map."""
        _library.call("dirty_watch_all", self._open())

    def unwatch(self, start: int, length: int) -> None:
        """Stop watching pages; each must be watched. What no collect has found there is forgotten."""
        _library.call("dirty_unwatch", self._open(), *_range(start, length))

    def collect(self, start: int | None = None, length: int | None = None) -> list[Extent]:
        """Return the pages written since the last collect, or since they were watched, in order of addresses.

        With ``start`` and ``length`` only of these pages, which must be watched; what was written elsewhere
        is left for the next collect. Read the memory after this call: what is written later is reported by
        the next collect.
        """
        return self._find("dirty_collect", "dirty_collect_range", start, length)

    def peek(self, start: int | None = None, length: int | None = None) -> list[Extent]:
        """Return what ``collect`` would return now, and take nothing away: the next collect reports it again.

        Copy pages after the collect that reports them, not only after a peek. It costs what a collect costs.
        """
        return self._find("dirty_peek", "dirty_peek_range", start, length)

    def _find(self, function: str, of_range: str, start: int | None, length: int | None) -> list[Extent]:
        where: tuple[int, ...] = ()
        if start is not None and length is not None:
            function, where = of_range, _range(start, length)
        elif start is not None or length is not None:
            raise TypeError("a range has a start and a length")
        with self._lock:
            handle = self._open()
            count = _library.call(function, handle, *where)
            try:
                extents = _library.ffi.new("struct dirty_extent[]", max(count, 1))
                count = _library.call("dirty_read", handle, extents, len(extents))
                return [Extent(one.start, one.end, Reason(one.reason)) for one in extents[0:count]]
            except BaseException as why:
                self._why_closed = (
                    f"this tracker has ended: what a collect found was lost by {why!r}; copy all"
                )
                self.close()
                raise

    def close(self) -> None:
        """Release the process, which runs on untracked; again, or in a forked child, does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            _library.call("dirty_close", handle)
        except Error as why:
            if why.errno != errno.EXDEV:
                raise

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._owner == os.getpid():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError(self._why_closed)
        return self._handle


def _range(start: int, length: int) -> tuple[int, int]:
    if not (0 <= start < 1 << 64 and 0 <= length < 1 << 64):
        raise BadRange(errno.EINVAL, f"{length} bytes from {start:#x} are no range in user space")
    return start, length
