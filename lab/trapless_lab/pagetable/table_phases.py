# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of page tables in a phase of a run, grouped as in the paper.

Invariant: a mean is over all spans of its kind in the phase, except those that contain instructions of other
code; ``Phase`` says how many those are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from ..errors import LabError
from ..experiment.workload import NS_PER_INSTRUCTION
from .table_spans import Direction, Level, TableSpan

DIRECTIONS: tuple[Direction, ...] = ("allocate", "free")

PAPER_LEVELS: Mapping[str, tuple[Level, ...]] = {"L1": ("pgd",), "L2": ("pmd", "pud"), "L3": ("pte",)}
"""The paper's three levels. The allocation of pgd includes that of user_pgd. The middle level of the paper's
machine is two levels here, each with allocations of its own; its mean is over the allocations of both."""

SEEN_BOOSTED: tuple[Level, ...] = ("pte", "pmd", "pud", "pgd")
"""Boosted, the user's top table is made inside of pgd_alloc."""


@dataclass(frozen=True)
class Phase:
    """The tables made and given back within a stretch of a run, from ``start`` to ``end`` in instructions."""

    tables: Sequence[TableSpan]
    start: int
    end: int

    def clean(self, direction: Direction, levels: Iterable[Level]) -> list[TableSpan]:
        """Return the spans without instructions of other code."""
        wanted = set(levels)
        return [s for s in self.tables if s.direction == direction and s.level in wanted and not s.foreign]

    def mean(self, direction: Direction, level: str) -> float:
        """Return the mean of one of the paper's levels, until the table is there."""
        found = self.clean(direction, PAPER_LEVELS[level])
        if not found:
            raise LabError(f"no {direction} of {level} was recorded")
        return fmean(s.ready for s in found)

    def together(self, direction: Direction) -> float:
        """Return the sum over the paper's three levels."""
        return sum(self.mean(direction, level) for level in PAPER_LEVELS)

    def foreign(self) -> float:
        """Return the share of spans that do not count."""
        return sum(s.foreign for s in self.tables) / max(len(self.tables), 1)

    def part(self, start: int, end: int) -> "Phase":
        """Return a stretch of it."""
        return Phase([s for s in self.tables if start <= s.at < end], start, end)

    def curve(self, points: int) -> dict[str, list[float | None]]:
        """Return the cost of each level over time, one point for each stretch; None without spans."""
        width = (self.end - self.start) / points
        edges = [self.start + round(i * width) for i in range(points + 1)]
        parts = [self.part(start, end) for start, end in pairwise(edges)]
        curve: dict[str, list[float | None]] = {"ms": [ms((i + 0.5) * width) for i in range(points)]}
        for direction in DIRECTIONS:
            for name, levels in PAPER_LEVELS.items():
                found = [part.clean(direction, levels) for part in parts]
                curve[f"{name} {direction}"] = [
                    round(fmean(s.ready for s in spans), 1) if spans else None for spans in found
                ]
        return curve


def ms(instructions: float) -> float:
    """Return the guest's milliseconds that so many instructions take."""
    return round(instructions * NS_PER_INSTRUCTION / 1e6, 2)


def added(stock: Phase, missing: Phase, direction: Direction) -> dict[str, float]:
    """Return the hooks' cost for a table that is not the pool's: kernel instructions, medians."""
    result: dict[str, float] = {}
    for level in SEEN_BOOSTED:
        medians = [median(s.kernel for s in phase.clean(direction, [level])) for phase in (stock, missing)]
        result[level] = medians[1] - medians[0]
    return result


def percent_left(stock: Phase, boosted: Phase, direction: Direction) -> float:
    """Return the remaining share of stock's instructions, over the paper's three levels together."""
    return round(100 * boosted.together(direction) / stock.together(direction), 1)
