# SPDX-License-Identifier: Apache-2.0 OR MIT
"""From counts to a profile: names, spaces, groups, stacks.

Invariant: every instruction is in one space, one group, one symbol and one stack, so that each of these adds
up to the total.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..experiment.experiment import Check
from ..plugins.counts import Counts
from ..symbols import Symbols
from . import groups
from .groups import Space

# PV Linux leaves these addresses to Xen; the plugin distinguishes the spaces in the same way.
_XEN = range(0xFFFF800000000000, 0xFFFF880000000000)
_USER_END = 1 << 63

_HYPERCALL = re.compile(r"do_\w+")
_DISPATCHERS = {"pv_hypercall": "direct", "pv_do_multicall_call": "multicall"}
# Transitions between the spaces, each with the function of Xen that is entered.
EVENTS = {
    "system calls into Xen": "lstar_enter",
    "page faults into Xen": "page_fault",
    "general protection faults into Xen": "general_protection",
    "interrupts into Xen": "common_interrupt",
    "iret by hypercall": "do_iret",
    "instructions emulated": "x86_emulate",
    "TLB flushes": "flush_area_local",
}


@dataclass(frozen=True)
class Symbol:
    """A function's own instructions, and how often it was entered."""

    space: Space
    name: str
    instructions: int
    entries: int


Frames = tuple[str, ...]
"""A space and the functions of a stack, the outermost first."""


@dataclass
class Profile:
    """A profile, resolved to names."""

    total: int
    symbols: Sequence[Symbol]
    groups: Mapping[tuple[Space, str], int]
    stacks: Mapping[Frames, int]
    hypercalls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    checks: Sequence[Check] = ()

    @property
    def spaces(self) -> dict[Space, int]:
        """The instructions of each space."""
        return {
            space: sum(n for (where, _), n in self.groups.items() if where == space)
            for space in groups.SPACES
        }

    @property
    def holds(self) -> bool:
        """Whether every check held."""
        return all(check.holds for check in self.checks)


def space_of(address: int) -> Space:
    """Return the space of an address."""
    if address in _XEN:
        return "xen"
    return "user" if address < _USER_END else "kernel"


def summarise(counted: Counts, symbols: Symbols) -> Profile:
    """Resolve every address and add up."""
    known: dict[int, str] = {}

    def name(address: int) -> str:
        if address not in known:
            found = symbols.find(address)
            known[address] = found[1] if found else f"[{space_of(address)}]"
        return known[address]

    own: Counter[tuple[Space, str]] = Counter()
    entries: Counter[tuple[Space, str]] = Counter()
    grouped: Counter[tuple[Space, str]] = Counter()
    stacks: Counter[Frames] = Counter()
    hypercalls: dict[str, Counter[str]] = {}
    for address, number in counted.instructions.items():
        own[space_of(address), name(address)] += number
        found = symbols.find(address)
        if found and found[0] == address:
            entries[space_of(address), found[1]] += number
    for stack, number in counted.stacks.items():
        space = space_of(stack[-1])
        if space == "user":
            own[space, "[user]"] += number
        frames = () if space == "user" else tuple(name(address) for address in stack)
        grouped[space, groups.group_of(space, frames)] += number
        stacks[space, *frames] += number
        how = _DISPATCHERS.get(frames[-2]) if len(frames) > 1 else None
        if how and _HYPERCALL.fullmatch(frames[-1]) and symbols.find(stack[-1]) == (stack[-1], frames[-1]):
            hypercalls.setdefault(frames[-1], Counter())[how] += counted.runs[stack]
    return Profile(
        counted.total,
        [Symbol(*key, number, entries[key]) for key, number in own.most_common()],
        grouped,
        stacks,
        hypercalls,
        {event: entries["xen", function] for event, function in EVENTS.items() if entries["xen", function]},
    )


def adds_up(profile: Profile) -> Check:
    """Compare the sums of the resolved counts with the total."""
    sums = {
        "groups": sum(profile.groups.values()),
        "symbols": sum(symbol.instructions for symbol in profile.symbols),
        "stacks": sum(profile.stacks.values()),
    }
    wrong = [f"{what} {number:,}" for what, number in sums.items() if number != profile.total]
    text = f"groups, symbols and stacks each hold {profile.total:,} instructions"
    return Check("adds up", not wrong, text if not wrong else f"{profile.total:,}, but {', '.join(wrong)}")
