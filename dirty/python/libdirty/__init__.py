# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which pages of a process were written since the last time one asked.

Wraps the C library libdirty (``dirty.h``), which has to be installed. ``track`` is where to begin.
"""

from .backends import Capabilities, Cost, Finding, Sees, capabilities, survey
from .errors import BadRange, Error, NoProcess, NotPermitted, Unsupported
from .extent import Extent, Reason
from .tracker import Tracker, pages_of, track

__version__ = "0.2.0"

__all__ = [
    "BadRange",
    "Capabilities",
    "Cost",
    "Error",
    "Extent",
    "Finding",
    "NoProcess",
    "NotPermitted",
    "Reason",
    "Sees",
    "Tracker",
    "Unsupported",
    "capabilities",
    "pages_of",
    "survey",
    "track",
]
