# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a collect reports."""

from typing import NamedTuple

from . import _library
from ._growing import Growing


class Reason(Growing):
    """Why pages are reported: all but WRITTEN and DISCARDED mean doubt, treat every page as dirty.

    A later library may have more of them. Such a one has the name ``UNKNOWN``, and is dirty as well.
    """

    WRITTEN = 0
    NEW_MAPPING = 1
    UNMAPPED = 2
    UNSUPPORTED = 3
    OVERFLOW = 4
    PROTECTION_CHANGED = 5
    NOT_STOPPED = 6
    EXEC = 7
    EXITED = 8
    DISCARDED = 9

    @property
    def text(self) -> str:
        """In words."""
        return _library.text(_library.function("dirty_reason_text")(self.value))

    @property
    def is_mapped(self) -> bool:
        """Whether the pages are still there to be read."""
        return bool(_library.function("dirty_reason_is_mapped")(self.value))

    @property
    def is_zero(self) -> bool:
        """Whether the pages are to be zeros in the copy, even if something else can be read there by now."""
        return bool(_library.function("dirty_reason_is_zero")(self.value))

    @property
    def is_doubt(self) -> bool:
        """Whether the pages are reported because it is not known which of them were written."""
        return self not in (Reason.WRITTEN, Reason.DISCARDED)


class Extent(NamedTuple):
    """Pages reported dirty, and why: from the address ``start`` up to ``end``."""

    start: int
    end: int
    reason: Reason

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def is_zero(self) -> bool:
        """Whether the copy is to have zeros here, or a hole: do not read these pages."""
        return self.reason.is_zero

    @property
    def is_content(self) -> bool:
        """Whether these pages are to be copied."""
        return self.reason.is_mapped and not self.reason.is_zero
