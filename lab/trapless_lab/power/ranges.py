# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Counts of a host kernel's instructions in parts of its code, while a guest runs the same kernel: the input
of plugins/ranges.c, and its results.

Invariant: instructions outside all parts are counted, too, so that the counts add up to the machine's total.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError
from .image import BASE, Branch, Image

_COUNTS = re.compile(
    r"((?:range [0-9a-f]+ \d+\n)*)rest (\d+)\nguest (\d+)\nprograms (\d+)\n"
    r"((?:span [0-9a-f]+ \d+ \d+\n)*)end\n"
)
_RANGE = re.compile(r"range ([0-9a-f]+) (\d+)\n")
_SPAN = re.compile(r"span ([0-9a-f]+) (\d+) (\d+)\n")


@dataclass(frozen=True)
class Plan:
    """Parts of the kernel by name, and calls that are followed to their returns."""

    parts: Mapping[str, range]
    calls: Sequence[Branch] = ()

    def write(self, target: Path) -> None:
        """Write the plugin's input."""
        lines = [f"base {BASE:x}"]
        lines += [f"range {part.start:x} {part.stop:x}" for part in self.parts.values()]
        lines += [f"span {call.at:x}" for call in self.calls]
        target.write_text("".join(f"{line}\n" for line in lines))


@dataclass(frozen=True)
class Called:
    """How often something was called, and the instructions until it returned, its callees' with them."""

    times: int
    instructions: int


@dataclass(frozen=True)
class Counts:
    """Instructions: of the host kernel by part and in the rest, of the guest's kernel, and of programs, the
    host's and the guest's. ``calls`` is by the address that was called.
    """

    parts: Mapping[str, int]
    rest: int
    guest: int
    programs: int
    calls: Mapping[int, Called]

    @property
    def total(self) -> int:
        """Return the sum: all instructions of the machine."""
        return sum(self.parts.values()) + self.rest + self.guest + self.programs


def parse(text: str, plan: Plan) -> Counts:
    """Read the plugin's output."""
    found = _COUNTS.fullmatch(text)
    ranges, spans = (_RANGE.findall(found[1]), _SPAN.findall(found[5])) if found else ([], [])
    if (
        not found
        or [int(first, 16) for first, _ in ranges] != [part.start for part in plan.parts.values()]
        or [int(at, 16) for at, *_ in spans] != [call.at for call in plan.calls]
    ):
        raise LabError(f"the counts of instructions are not whole, or not those of the plan:\n{text[-500:]}")
    parts = dict(zip(plan.parts, (int(count) for _, count in ranges), strict=True))
    calls = {call.target: Called(0, 0) for call in plan.calls}
    for call, (_, times, count) in zip(plan.calls, spans, strict=True):
        so_far = calls[call.target]
        calls[call.target] = Called(so_far.times + int(times), so_far.instructions + int(count))
    return Counts(parts, int(found[2]), int(found[3]), int(found[4]), calls)


def calls_into(image: Image, parts: Sequence[range]) -> list[Branch]:
    """Return the calls of parts of the kernel from outside of them."""
    found = []
    for branch in image.branches():
        if _within(branch.target, parts) and not _within(branch.at, parts):
            if not branch.link:
                raise LabError(
                    f"{image.name(branch.at)} ends in {image.name(branch.target)}, a call without a return "
                    "of its own: it cannot be followed"
                )
            found.append(branch)
    return found


def _within(address: int, parts: Sequence[range]) -> bool:
    return any(part.start <= address < part.stop for part in parts)
