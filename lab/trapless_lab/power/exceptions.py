# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The exits of a guest's privileged instructions, recorded outside the machine: QEMU's log of exceptions.

Invariant: nothing here depends on KVM. Host and guest run the same kernel at the same addresses, but the
host's may execute all instructions, so a privileged instruction that traps at a kernel address is the
guest's. At a user address it is from a program of host or guest: the C library reads the processor's
identification. An unknown or truncated line of the log is an error.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError
from .image import BASE

# Below this address runs a kernel that has not mapped itself yet; from there up to BASE, programs.
_PROGRAMS = 0x10000000

# QEMU's numbers for the causes of a PROGRAM exception.
_OPERATION, _REGISTER, _TRAP = "31", "32", "40"

_RAISED = re.compile(r"Raise exception at ([0-9a-f]{8}) => (\S+) \(\d+\) error=([0-9a-f]+)\n")
_SYSTEM_CALL = re.compile(r"syscall r0=[0-9a-f]+ .*\n")


@dataclass(frozen=True)
class Exceptions:
    """How often the guest's kernel was refused a privileged operation, or a move of a privileged register,
    and any kernel trapped, by program counter. ``by_programs`` counts refusals of programs, the host's and
    the guest's.
    """

    operations: Mapping[int, int]
    registers: Mapping[int, int]
    traps: Mapping[int, int]
    by_programs: int

    @property
    def refused(self) -> Mapping[int, int]:
        """Return all operations that the guest's kernel was refused."""
        return {**self.operations, **self.registers}


def read(log: Path) -> Exceptions:
    """Read a log, line by line: there are hundreds of thousands."""
    with log.open() as lines:
        return parse(lines)


def parse(lines: Iterable[str]) -> Exceptions:
    """Read the lines of a log."""
    by_error = {error: Counter[int]() for error in (_OPERATION, _REGISTER, _TRAP)}
    by_programs, seen = 0, False
    for number, line in enumerate(lines, 1):
        found = _RAISED.fullmatch(line)
        if not found:
            if not _SYSTEM_CALL.fullmatch(line):
                raise LabError(f"line {number} of QEMU's log of exceptions is none of QEMU's: {line!r}")
            continue
        seen = True
        if found[2] != "PROGRAM" or found[3] not in by_error:
            continue
        address = int(found[1], 16)
        if _PROGRAMS <= address < BASE:
            by_programs += found[3] != _TRAP
        else:
            by_error[found[3]][address | BASE] += 1
    if not seen:
        raise LabError("QEMU's log has no exceptions; is -d int missing?")
    operations, registers, traps = by_error.values()
    if both := operations.keys() & registers.keys():
        raise LabError(f"at {min(both):#x} QEMU refused now an operation, now a register")
    return Exceptions(operations, registers, traps, by_programs)
