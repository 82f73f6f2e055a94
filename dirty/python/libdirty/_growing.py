# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Enumerations of the library to which later versions of it may add."""

from enum import IntEnum
from typing import Self


class Growing(IntEnum):
    """A value that this package does not know has the name ``UNKNOWN``."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = "UNKNOWN", value
        return unknown
