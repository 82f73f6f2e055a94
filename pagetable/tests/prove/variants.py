# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hypervisors that differ from the installed one in some bytes or names, made in memory.

Invariant: a variant is equivalent to one read from files with these changes. Results from the installed one
are kept only if neither the bytes nor the names on which they depend have changed; test_variants.py compares
them with a full search.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from check_layout import DEFAULT_IMAGE, DEFAULT_LAYOUT, DEFAULT_SYMBOLS
from layout_checker.facts import check_all
from layout_checker.header import parse_header, read_layout
from layout_checker.hypervisor import (
    Hypervisor,
    Instruction,
    absolute_pointers,
    near_branches,
    relative_pointers,
)

# Of the family of Debian 12's Xen, whose passages, sizes and addresses the tests change.
LAYOUT_TEXT = read_layout(DEFAULT_LAYOUT, (4, 17))
HEADER = parse_header(LAYOUT_TEXT)

LONGEST_BRANCH = 6  # bytes
POINTER = 8  # bytes


@cache
def installed() -> Hypervisor:
    """Return the installed hypervisor, completely searched; tests must not change it."""
    hypervisor = Hypervisor(DEFAULT_IMAGE, DEFAULT_SYMBOLS)
    check_all(HEADER, hypervisor)
    return hypervisor


class Variant(Hypervisor):
    """A changeable copy of the installed hypervisor."""

    def __init__(self, keep: bool = True) -> None:
        """``keep`` False: no results of the installed one are kept."""
        self.__dict__.update(installed().__dict__)
        self.image = copy.copy(self.image)
        self.symbols = dict(self.symbols)
        self._functions = dict(self._functions)
        self._texts = dict(self._texts)
        if not keep:
            self._functions, self._texts = {}, {}
            self._forget("_direct_branches", "_code_pointers", "_names", "_function_starts")

    def _forget(self, *found: str) -> None:
        for name in found:
            self.__dict__.pop(name, None)

    # -- bytes ------------------------------------------------------------------------------------

    def poke(self, address: int, data: bytes, image_only: bool = False) -> None:
        """Change bytes in both files, as another compiler would, or only in the one that boots."""
        end = address + len(data)
        before = self._branches_at(address, end), self._pointers_at(address, end)
        self.image.flat = _spliced(self.image.flat, address - self.base, data)
        if not image_only:
            self.sections = [
                replace(section, data=_spliced(section.data, address - section.address, data))
                if section.address <= address < section.address + len(section.data)
                else section
                for section in self.sections
            ]
        self._drop(lambda code: code[0].address < end and address < code[-1].address + code[-1].size)
        self._exchange("_direct_branches", before[0], self._branches_at(address, end))
        self._exchange("_code_pointers", before[1], self._pointers_at(address, end))

    def _branches_at(self, first: int, end: int) -> Counter[tuple[int, int]]:
        """Branches with a byte at these addresses, end excluded."""
        first -= LONGEST_BRANCH - 1
        found: Counter[tuple[int, int]] = Counter()
        for section in self.sections:
            start = max(first, section.address)
            stop = min(end + LONGEST_BRANCH, section.address + len(section.data))
            if section.executable and start < stop:
                pairs = near_branches(self.read(start, stop - start), start)
                found.update(pair for pair in pairs if first <= pair[1] < end)
        return found

    def _pointers_at(self, first: int, end: int) -> Counter[tuple[int, int]]:
        """Pointers with a byte at these addresses, end excluded."""
        start = max(first - POINTER + 1, self.base)
        data = self.image.flat[start - self.base : end + POINTER - self.base]
        pairs = list(absolute_pointers(data, start, *self._code))
        for section in self.sections:
            begin = max(start, section.address)
            stop = min(end + POINTER, section.address + len(section.data))
            if not section.executable and section.name != ".note.gnu.build-id" and begin < stop:
                pairs += relative_pointers(self.read(begin, stop - begin), begin, *self._code)
        return Counter(pair for pair in pairs if start <= pair[1] < end)

    def _exchange(self, name: str, old: Counter[tuple[int, int]], new: Counter[tuple[int, int]]) -> None:
        """Replace earlier results by those found now, if there were any."""
        if name in self.__dict__ and old != new:
            found = list(self.__dict__[name])
            for pair in (old - new).elements():
                del found[bisect_left(found, pair)]
            for pair in (new - old).elements():
                insort(found, pair)
            self.__dict__[name] = found

    # -- names ------------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        """Give the only symbol of a name another name, none if ``new`` is empty."""
        (symbol,) = self.symbols.pop(old)
        if new:
            self.symbols[new] = [*self.symbols.get(new, []), replace(symbol, name=new)]
        self._forget("_names", "_function_starts")
        self.digests = {}
        self._functions.pop(old, None)
        self._functions.pop(new, None)
        self._drop(lambda code: any(old in i.text for i in code))
        self._texts = {}

    def _drop(self, changed: Callable[[list[Instruction]], bool]) -> None:
        """Forget the code of changed functions, and the text of references to them."""
        dropped = {name for name, code in self._functions.items() if changed(code)}
        originals = dropped | {name.partition(".")[0] for name in dropped}
        self._functions = {name: code for name, code in self._functions.items() if name not in dropped}
        self._texts = {key: text for key, text in self._texts.items() if key[0] not in originals}


def _spliced(old: bytes, place: int, data: bytes) -> bytes:
    assert 0 <= place <= len(old) - len(data)
    return old[:place] + data + old[place + len(data) :]
