# SPDX-License-Identifier: Apache-2.0 OR MIT
"""From addresses to names.

Invariant: an address belongs to the nearest symbol at or below it within the same area, and never to a symbol
of another area; of several symbols at one address, always the same one is taken.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from .errors import LabError

Named = tuple[int, str]
"""An address and the name that begins there."""

# Names of a section's begin or end, used only if there is no other at the address.
_MARK = re.compile(r"_?_?[se]?(?:init)?text(?:entry)?|__\w+_(?:start|end|begin)|__pfx_.*|__cfi_.*|\.L.*")


def _rank(name: str) -> tuple[bool, int, str]:
    return _MARK.fullmatch(name) is not None, len(name), name


@dataclass(frozen=True)
class Area:
    """Code that was linked or loaded together; addresses below its first symbol have the area's name."""

    name: str
    first: int
    end: int
    symbols: tuple[Named, ...] = ()
    addresses: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        best = {self.first: f"[{self.name}]"}
        for address, name in sorted(self.symbols, key=lambda symbol: _rank(symbol[1]), reverse=True):
            if self.first <= address < self.end:
                best[address] = name
        ordered = tuple(sorted(best.items()))
        object.__setattr__(self, "symbols", ordered)
        object.__setattr__(self, "addresses", tuple(address for address, _ in ordered))

    def find(self, address: int) -> Named:
        """Return the symbol of an address within the area."""
        return self.symbols[bisect_right(self.addresses, address) - 1]


class Symbols:
    """Areas that do not overlap."""

    def __init__(self, areas: Iterable[Area]) -> None:
        self._areas = sorted(areas, key=lambda area: area.first)
        for below, above in pairwise(self._areas):
            if below.end > above.first:
                raise LabError(f"the code at {above.first:#x} is in {below.name} and in {above.name}")
        self._firsts = [area.first for area in self._areas]

    def find(self, address: int) -> Named | None:
        """Return the symbol of an address: where it begins and its name; None outside of all areas."""
        at = bisect_right(self._firsts, address) - 1
        if at < 0 or address >= self._areas[at].end:
            return None
        return self._areas[at].find(address)
