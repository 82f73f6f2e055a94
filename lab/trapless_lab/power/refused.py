# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The instructions of a guest's kernel that exit, from QEMU's log of exceptions and the linked kernel.

Invariant: an instruction is named only if it fits QEMU's reason for refusing it; every other exit is counted
under the reason why it has no name.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from ..errors import LabError
from . import instructions as power_instructions
from .exceptions import Exceptions
from .image import Image

OUTSIDE, REPLACED = "outside of the kernel", "replaced since it was linked"

_EXECUTE_PAGES = "trapless_bt_execute"
# Of a fragment's own instructions only one is refused: the second of those for a write of PID.
_SLOT_BYTES, _WRITE_OF_PID, _NAME_THERE = 64, 4, "mtspr PID"
_TOP = 20


def _in_fragment(image: Image, address: int) -> bool:
    return image.name(address).startswith(f"{_EXECUTE_PAGES}+")


def _instruction(image: Image, address: int, moves_register: bool) -> str:
    if moves_register and address % _SLOT_BYTES == _WRITE_OF_PID and _in_fragment(image, address):
        return _NAME_THERE
    words = image.words(address)
    for name in map(power_instructions.name, words):
        if name and power_instructions.moves_register(name) == moves_register:
            return name
    return REPLACED if words else OUTSIDE


def instructions(image: Image, exceptions: Exceptions) -> dict[int, str]:
    """Return the refused instruction at each address: of the possible ones, that which fits QEMU's reason."""
    return {address: _instruction(image, address, False) for address in exceptions.operations} | {
        address: _instruction(image, address, True) for address in exceptions.registers
    }


def by_instruction(image: Image, exceptions: Exceptions) -> Counter[str]:
    """Return the exits of each privileged instruction, with the name of the SPR."""
    names = instructions(image, exceptions)
    found = Counter[str]()
    for address, times in exceptions.refused.items():
        found[names[address]] += times
    return found


def fragment_traps(image: Image, exceptions: Exceptions) -> int:
    """Return how often a fragment trapped; a trap anywhere else is an error."""
    if strangers := [image.name(at) for at in exceptions.traps if not _in_fragment(image, at)]:
        raise LabError(f"a kernel trapped at {', '.join(strangers)}")
    return sum(exceptions.traps.values())


def pcs_for(refused: Iterable[int], percent: float) -> int:
    """Return how many of the most frequent program counters together have this share of the exits."""
    ordered = sorted(refused, reverse=True)
    wanted = sum(ordered) * percent / 100
    return sum(before < wanted for before in accumulate([0, *ordered[:-1]])) if ordered else 0


def top(image: Image, exceptions: Exceptions) -> list[dict[str, Any]]:
    """Return the program counters with the most exits."""
    refused, names = exceptions.refused, instructions(image, exceptions)
    total = sum(refused.values())
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))[:_TOP]
    return [
        {
            "at": image.name(address),
            "instruction": names[address],
            "exits": times,
            "percent": round(100 * times / total, 2),
        }
        for address, times in ordered
    ]
