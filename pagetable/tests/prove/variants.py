# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hypervisors that differ from the installed one in some bytes or names, made in memory.

Invariant: a variant is equivalent to one read from files with these changes. Results from the installed one
are kept only if neither the bytes nor the names on which they depend have changed; test_variants.py compares
them with a full search.
"""

from __future__ import annotations

import copy
import gzip
import io
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import probe
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

needs_xen = pytest.mark.skipif(
    not (DEFAULT_IMAGE.exists() and DEFAULT_SYMBOLS.exists()),
    reason="Debian's Xen and its -dbg package are not installed",
)
of_debian12 = pytest.mark.debian12(
    "its passages, loops and addresses are changed, and they are of that build"
)

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


def against(found: probe.Findings) -> set[str]:
    """The parts against which something stands."""
    return {part for part, why in found.parts().items() if why}


class Files:
    """Both files of a hypervisor, changed together or separately. A Variant is equivalent and faster."""

    def __init__(self, directory: Path, image: Path = DEFAULT_IMAGE, symbols: Path = DEFAULT_SYMBOLS) -> None:
        self.image_path = directory / "xen.gz"
        self.symbols_path = directory / "xen-syms"
        self.hypervisor = installed() if image == DEFAULT_IMAGE else Hypervisor(image, symbols)
        self.image = bytearray(gzip.decompress(image.read_bytes()))
        self.symbols = bytearray(symbols.read_bytes())
        self.image_start = self.image.find(self.hypervisor.image.flat) - self.hypervisor.base
        self.symbols_start = self.symbols.find(self.hypervisor.image.flat) - self.hypervisor.base
        assert min(self.image_start, self.symbols_start) > -self.hypervisor.base

    def poke(self, address: int, data: bytes) -> None:
        """The same hypervisor, compiled differently."""
        for content, start in (
            (self.image, self.image_start),
            (self.symbols, self.symbols_start),
        ):
            content[start + address : start + address + len(data)] = data

    def flip(self, function: str, behind: int = 0) -> None:
        """Turn round the first conditional jump of a function, or behind an address in it, in both files."""
        symbol = self.hypervisor.symbol(function)
        code = (i for i in self.hypervisor.disassemble(symbol.address, symbol.size) if i.address >= behind)
        jump = next(i for i in code if i.mnemonic.startswith("j") and i.mnemonic != "jmp")
        old = bytearray(self.hypervisor.read(jump.address, jump.size))
        old[1 if old[0] == 0x0F else 0] ^= 1
        self.poke(jump.address, bytes(old))

    def place_of(self, symbol: str) -> int:
        """Where in the symbol file the entry of a symbol is."""
        table = ELFFile(io.BytesIO(bytes(self.symbols))).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        names = [entry.name for entry in table.iter_symbols()]
        return int(table["sh_offset"] + names.index(symbol) * table["sh_entsize"])

    def rename(self, symbol: str, other: str) -> None:
        """Give a symbol the name of another, or none."""
        name = self.symbols[self.place_of(other) :][:4] if other else bytes(4)
        place = self.place_of(symbol)
        self.symbols[place : place + 4] = name

    def spell(self, symbol: str, other: str) -> None:
        """Write a name of no more letters in the place of a symbol's."""
        names = ELFFile(io.BytesIO(bytes(self.symbols))).get_section_by_name(".strtab")
        assert names and len(other) <= len(symbol)
        place = self.place_of(symbol)
        at = names["sh_offset"] + int.from_bytes(self.symbols[place : place + 4], "little")
        self.symbols[at : at + len(other) + 1] = other.encode() + b"\0"

    def write(self) -> tuple[Path, Path]:
        """Write both; return image and symbols."""
        self.image_path.write_bytes(gzip.compress(bytes(self.image), 1))
        self.symbols_path.write_bytes(self.symbols)
        return self.image_path, self.symbols_path
