# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What can go wrong: each error has the library's message, which names what and why, and an ``errno``."""

import errno


class Error(OSError):
    """A call of libdirty failed, and changed nothing."""


class NotPermitted(Error, PermissionError):
    """The caller may not track this process: tracking needs the permission to ptrace it."""


class NoProcess(Error, ProcessLookupError):
    """There is no such process, or its end (or its ``execve``) was reported by an earlier collect."""


class BadRange(Error, ValueError):
    """The range is no range of whole pages in user space; or the name of a back end is none."""


class Unsupported(Error):
    """The back end does not work here, or none does; the message has the reason of each."""


KINDS = {
    errno.EPERM: NotPermitted,
    errno.ESRCH: NoProcess,
    errno.EINVAL: BadRange,
    errno.EOPNOTSUPP: Unsupported,
}


def error(number: int, message: str) -> Error:
    """Return what is to be raised for an ``errno``."""
    return KINDS.get(number, Error)(number, message)
