# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The linked kernel image of the Power machines: its instructions, its symbols, and the parts that come from
each source file.

Invariant: addresses are the kernel's own, after it has mapped itself. At an address there may be the linked
instruction, or its alternative in the feature tables; jump labels are not covered.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section, SymbolTableSection

from ..errors import LabError
from ..symbols import Area

BASE = 0xC0000000
"""Where the kernel is mapped; programs are below it."""

_WORD = struct.Struct(">I")
# struct fixup_entry of the kernel: a mask, a value, then distances from the entry itself: to where the code
# and its alternative begin and end. The kernel fills up the rest of the code with no-ops.
_FIXUP = struct.Struct(">IIiiii")
_FIXUPS = ("__ftr_fixup", "__mmu_ftr_fixup")
_BRANCH, _LINK, _ABSOLUTE = 18, 1, 2


@dataclass(frozen=True)
class Branch:
    """A direct branch of the kernel's code; ``link`` says whether it is a call."""

    at: int
    target: int
    link: bool


@dataclass(frozen=True)
class Image:
    """``code`` has the address and contents of each section with instructions; ``functions`` are global ones;
    ``alternatives`` maps an address to that of the instruction that may replace it during boot.
    """

    area: Area
    code: tuple[tuple[int, bytes], ...]
    functions: Mapping[str, int]
    alternatives: Mapping[int, int]

    def words(self, address: int) -> list[int]:
        """Return the instructions that may be at an address, the linked one first; none: no code."""
        places = [address, *([self.alternatives[address]] if address in self.alternatives else [])]
        return [word for word in map(self._word, places) if word is not None]

    def _word(self, address: int) -> int | None:
        at = bisect_right(self.code, address, key=lambda section: section[0]) - 1
        if at < 0 or address % _WORD.size:
            return None
        first, content = self.code[at]
        if address + _WORD.size > first + len(content):
            return None
        return int(_WORD.unpack_from(content, address - first)[0])

    def name(self, address: int) -> str:
        """Return the function of an address and the offset in it."""
        if not self.area.first <= address < self.area.end:
            return f"{address:#x}"
        first, name = self.area.find(address)
        return f"{name}+{address - first:#x}"

    def branches(self) -> Iterator[Branch]:
        """Yield every direct, unconditional branch."""
        for first, content in self.code:
            for at, (word,) in enumerate(_WORD.iter_unpack(content)):
                if word >> 26 == _BRANCH and not word & _ABSOLUTE:
                    address = first + at * _WORD.size
                    distance = ((word & 0x03FFFFFC) ^ 0x02000000) - 0x02000000
                    yield Branch(address, address + distance, bool(word & _LINK))


def read(path: Path) -> Image:
    """Read a linked kernel."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        numbered = {
            number: section for number, section in enumerate(elf.iter_sections()) if _is_code(section)
        }
        code = [
            (section["sh_addr"], section.data()[: section["sh_size"] & -_WORD.size])
            for section in numbered.values()
        ]
        named = tuple(
            (symbol["st_value"], symbol.name)
            for symbol in _symbols(elf, path).iter_symbols()
            # Entry points written in assembler have no type.
            if symbol["st_info"]["type"] in ("STT_FUNC", "STT_NOTYPE") and symbol["st_shndx"] in numbered
        )
        functions = _functions(elf, path)
        alternatives = dict(pair for name in _FIXUPS for pair in _alternatives(elf.get_section_by_name(name)))
    code.sort()
    if not code or code[0][0] < BASE:
        raise LabError(f"{path} is not a kernel for {BASE:#x}")
    last, content = code[-1]
    return Image(Area("kernel", code[0][0], last + len(content), named), tuple(code), functions, alternatives)


def _is_code(section: Section) -> bool:
    wanted = SH_FLAGS.SHF_ALLOC | SH_FLAGS.SHF_EXECINSTR
    return bool(section["sh_flags"] & wanted == wanted)


def _alternatives(table: Section | None) -> Iterator[tuple[int, int]]:
    """Yield each address that has an alternative, and the alternative's address."""
    if table is None:
        return
    for at, entry in enumerate(_FIXUP.iter_unpack(table.data())):
        _, _, first, end, other, other_end = entry
        base = table["sh_addr"] + at * _FIXUP.size
        for offset in range(0, min(end - first, other_end - other), _WORD.size):
            yield base + first + offset, base + other + offset


def _symbols(elf: ELFFile, path: Path) -> SymbolTableSection:
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        raise LabError(f"{path} has no symbols")
    return table


def parts(image: Image, objects: Mapping[str, Path]) -> dict[str, range]:
    """Return the address ranges of objects in the linked kernel.

    An object's text stays in one piece, so each global function in it determines the range; all must agree.
    """
    found = {}
    for name, path in objects.items():
        with path.open("rb") as file:
            elf = ELFFile(file)
            text = elf.get_section_by_name(".text")
            offsets = _functions(elf, path, elf.get_section_index(".text"))
        bases = {image.functions.get(function, 0) - offset for function, offset in offsets.items()}
        if text is None or len(bases) != 1 or (first := bases.pop()) < BASE:
            raise LabError(f"the kernel was not linked from {path}; run make power")
        found[name] = range(first, first + text["sh_size"])
    return found


def _functions(elf: ELFFile, path: Path, section: int | None = None) -> dict[str, int]:
    """Return the global functions, or those in one section."""
    return {
        symbol.name: symbol["st_value"]
        for symbol in _symbols(elf, path).iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        if symbol["st_shndx"] != "SHN_UNDEF" and section in (None, symbol["st_shndx"])
    }
