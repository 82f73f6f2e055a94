# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The input of plugins/events.c, and its output.

Invariant: a file that ends in the middle of an interval is an error. events.c documents both files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError

Interval = Mapping[str, int]
"""Name -> how often, between two markers; what did not happen is not in it."""


@dataclass(frozen=True)
class Plan:
    """What to count, as (address, name), and code whose returns leave the hypervisor, as (first, end)."""

    events: Sequence[tuple[int, str]] = ()
    entries: Sequence[tuple[int, str]] = ()
    leaves: Sequence[tuple[int, int]] = ()

    def write(self, path: Path) -> Path:
        """Write the plan for the plugin."""
        lines = [f"event {address:x} {name}" for address, name in self.events]
        lines += [f"entry {address:x} {name}" for address, name in self.entries]
        lines += [f"leave {first:x} {end:x}" for first, end in self.leaves]
        path.write_text("".join(f"{line}\n" for line in lines))
        return path


def parse(lines: Iterable[str]) -> list[Interval]:
    """Read the plugin's file: its intervals in the order in which they ended."""
    found: list[Interval] = []
    inside: dict[str, int] | None = None
    for number, line in enumerate(lines, 1):
        match line.split():
            case ["begin"] if inside is None:
                inside = {}
            case ["end"] if inside is not None:
                found.append(inside)
                inside = None
            case [name, count] if inside is not None and name not in inside and count.isdecimal():
                inside[name] = int(count)
            case _:
                raise LabError(f"line {number} of the counted events is not understood: {line.strip()!r}")
    if inside is not None:
        raise LabError("the counted events end in the middle of an interval")
    return found
