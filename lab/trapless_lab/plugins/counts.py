# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads the output of the profiler's plugin: instructions by address, and by place in the call stacks.

Invariant: a file that is incomplete or does not add up is an error: every interval says how many instructions
it counted, and the sum over its stacks is that number.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import LabError

Stack = tuple[int, ...]
"""Addresses: of each call, outermost first, and of the block that ran last."""


@dataclass
class Counts:
    """The instructions between the markers, all intervals together.

    ``instructions`` has the kernels' alone: user code is counted in ``stacks`` only, as one, under address 0.
    ``runs`` is how often each stack's last block began. ``jumps`` are direct jumps that ended a block and
    were taken: from where, to where.
    """

    total: int = 0
    intervals: int = 0
    instructions: Counter[int] = field(default_factory=Counter)
    stacks: Counter[Stack] = field(default_factory=Counter)
    runs: Counter[Stack] = field(default_factory=Counter)
    jumps: set[tuple[int, int]] = field(default_factory=set)


def parse(lines: Iterable[str]) -> Counts:
    """Read the plugin's file."""
    counts = Counts()
    nodes: dict[int, tuple[int, int]] = {}
    leaves: list[tuple[int, int, int, int]] = []
    inside = False
    for number, line in enumerate(lines, 1):
        try:
            match line.split():
                case ["begin"] if not inside:
                    inside, nodes, leaves = True, {}, []
                case ["insn", address, count] if inside:
                    counts.instructions[int(address, 16)] += int(count)
                case ["jump", source, target] if inside:
                    counts.jumps.add((int(source, 16), int(target, 16)))
                case ["node", node, parent, site] if inside:
                    nodes[int(node)] = (int(parent), int(site, 16))
                case ["leaf", node, address, runs, count] if inside:
                    leaves.append((int(node), int(address, 16), int(runs), int(count)))
                case ["end", total] if inside:
                    _close(counts, nodes, leaves, int(total))
                    inside = False
                case _:
                    raise ValueError("unexpected")
        except (ValueError, KeyError) as error:
            raise LabError(f"line {number} of the profile is not understood: {line.strip()!r}") from error
    if inside:
        raise LabError("the profile ends in the middle of an interval")
    return counts


def _close(
    counts: Counts, nodes: dict[int, tuple[int, int]], leaves: list[tuple[int, int, int, int]], total: int
) -> None:
    if (counted := sum(count for *_, count in leaves)) != total:
        raise LabError(f"the profile's stacks hold {counted} instructions of {total}")
    known: dict[int, Stack] = {}

    def calls(node: int) -> Stack:
        if node not in known:
            parent, site = nodes[node]
            known[node] = () if parent < 0 else (*calls(parent), site)
        return known[node]

    for node, address, runs, count in leaves:
        stack = (*calls(node), address)
        counts.runs[stack] += runs
        counts.stacks[stack] += count
    counts.total += total
    counts.intervals += 1
