# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The loops that a payload leads past zero entries: zero_run_sites.h as data.

Invariant: only find_zero_runs.py writes that file, and only after it has proven each loop in the same
hypervisor; here it is only read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .report import UnusableInput

WRITTEN_BY = "it is written by find_zero_runs.py"
LINE = re.compile(
    r'\tzero_run name=(\w+), function="([^"]+)", offset=(0x[0-9a-f]+), size=(\d+), bytes="([^"]+)", .*'
)


@dataclass(frozen=True)
class Loop:
    """Where a trampoline is entered and what it goes back to."""

    name: str
    function: str
    offset: int
    code: bytes

    @property
    def back(self) -> int:
        """Where the trampoline goes on in the function."""
        return self.offset + len(self.code)


def read_loops(path: Path) -> list[Loop]:
    """Read zero_run_sites.h."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableInput(f"{path}: {error} ({WRITTEN_BY})") from error
    loops = []
    for line in re.sub(r"/\*.*?\*/", "", text, flags=re.S).splitlines():
        if not line.strip():
            continue
        found = LINE.fullmatch(line)
        code = bytes(int(byte, 16) for byte in found[5].split(",")) if found else b""
        if not found or len(code) != int(found[4]):
            raise UnusableInput(f"{path}: cannot be read: {line.strip()} ({WRITTEN_BY})")
        loops.append(Loop(found[1], found[2], int(found[3], 16), code))
    if not loops:
        raise UnusableInput(f"{path}: has no loop ({WRITTEN_BY})")
    return loops
