# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The image that UEFI starts (xen-VERSION-amd64.efi): the same objects as the other image, linked once more.

It is a PE file, and neither image has a symbol table: Debian ships a list of its addresses
(xen-VERSION-amd64.efi.map), while sizes and kinds stand only in the ELF file of the other link. So:

 1. In each section with code all symbols are as far from their place in the ELF file as any other. Hence
    a function's size there is its size here.
 2. The code is the same, instruction by instruction, but for addresses. Code that runs before paging has
    them as distances from Xen's base; such a number may differ by as much as the last symbol before it.
 3. A symbol outside of code is known only if the list names it; its address is the list's.

The build-id is the CodeView record's: 16 bytes, where the other image has a GNU note of 20. Xen itself
takes it from there, and prints it as it boots.
"""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import capstone
import pefile

from .hypervisor import (
    IMAGE_PACKAGE,
    SYMBOLS_PACKAGE,
    Hypervisor,
    Image,
    Section,
    Symbol,
    read_file,
)
from .report import Refused, UnusableInput

CODEVIEW = b"RSDS"
GUID_SIZE = 16
# What a link decides: displacements to other sections, and addresses.
ADDRESS = re.compile(r"rip [+-] (?:0x[0-9a-f]+|\d+)|0xffff82d[0-9a-f]{9}")
NUMBER = re.compile(r"(0x[0-9a-f]+)")
# Relocations, and with Xen 4.20 all debugging information: no part of the running hypervisor.
DISCARDABLE = pefile.SECTION_CHARACTERISTICS["IMAGE_SCN_MEM_DISCARDABLE"]


class EfiImage(Image):
    """A PE file, laid out as it lies in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = read_file(path, IMAGE_PACKAGE)
        try:
            file = pefile.PE(data=data, fast_load=True)
            self.base = file.OPTIONAL_HEADER.ImageBase
            parts = [
                (
                    s.Name.rstrip(b"\0").decode("ascii"),
                    s.VirtualAddress,
                    data[s.PointerToRawData :][: min(s.SizeOfRawData, s.Misc_VirtualSize)],
                )
                for s in file.sections
                if s.SizeOfRawData and not s.Characteristics & DISCARDABLE
            ]
        except (pefile.PEFormatError, UnicodeDecodeError) as error:
            raise UnusableInput(f"{path}: no PE image (cf. Debian's {IMAGE_PACKAGE}): {error}") from error
        flat = bytearray(max((start + len(part) for _, start, part in parts), default=0))
        for _, start, part in parts:
            flat[start : start + len(part)] = part
        self.flat = bytes(flat)
        self.parts = [(name, self.base + start, len(part)) for name, start, part in parts]
        record = next((part for name, _, part in parts if name == ".buildid"), b"")
        at = record.find(CODEVIEW)
        self.build_id = record[at + len(CODEVIEW) :][:GUID_SIZE]
        if at < 0 or len(self.build_id) != GUID_SIZE:
            raise UnusableInput(f"{path}: has no CodeView build-id (cf. Debian's {IMAGE_PACKAGE})")


class EfiHypervisor(Hypervisor):
    """Image, its list of symbols (beside the symbol file), and the ELF file of the same build."""

    image: EfiImage
    image_type = EfiImage

    def __init__(self, image: Path, symbols: Path) -> None:
        super().__init__(image, symbols)
        self.list_path = symbols.with_name(f"{image.name}.map")
        self.linked_symbols, self.linked_sections = self.symbols, self.sections
        self.base, self.build_id = self.image.base, self.image.build_id
        self.listed = self._read_list()
        self._move()

    @property
    def compared(self) -> list[str]:
        """No section has the same contents in both files: addresses differ."""
        return []

    @property
    def described(self) -> Hypervisor:
        """The ELF file: in it everything has a name, and its code is this image's but for addresses."""
        self.demand_one_build()
        linked = copy.copy(self)
        linked.__class__ = Hypervisor  # type: ignore[assignment]
        linked.image = copy.copy(self.image)
        linked.symbols, linked.sections = self.linked_symbols, self.linked_sections
        linked.base = linked.image.base = min(section.address for section in self.linked_sections)
        flat = bytearray(max(s.address + len(s.data) for s in self.linked_sections) - linked.base)
        for section in self.linked_sections:
            start = section.address - linked.base
            flat[start : start + len(section.data)] = section.data
        linked.image.flat = bytes(flat)
        linked.forget()
        return linked

    def demand_one_build(self) -> None:
        """The code is the same as in the ELF file, but for addresses."""
        moved = {section.name: section for section in self.sections}
        for section in self.linked_sections:
            if not section.executable:
                continue
            here = moved[section.name]
            for name, start, size in self._functions_of(section):
                old = section.data[start : start + size]
                new = here.data[start : start + size]
                if old == new:
                    continue
                if not self._same_code(old, section.address + start, new, here.address + start):
                    raise Refused(f"{name} of {self.image.path} is not that of {self.symbols_path}")

    def _functions_of(self, section: Section) -> Iterator[tuple[str, int, int]]:
        for symbols in self.linked_symbols.values():
            for symbol in symbols:
                start = symbol.address - section.address
                if symbol.kind == "function" and symbol.size and 0 <= start < len(section.data):
                    yield symbol.name, start, symbol.size

    def _same_code(self, old: bytes, old_address: int, new: bytes, new_address: int) -> bool:
        disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        disassembler.skipdata = True  # Xen's emulator has instructions that capstone does not know: bytes
        for one, other in itertools.zip_longest(
            disassembler.disasm_lite(old, old_address), disassembler.disasm_lite(new, new_address)
        ):
            if not one or not other or one[1:3] != other[1:3]:
                return False
            if not self._same_operands(ADDRESS.sub("@", one[3]), ADDRESS.sub("@", other[3])):
                return False
        return True

    def _same_operands(self, old: str, new: str) -> bool:
        if old == new:
            return True
        numbers = zip(NUMBER.split(old), NUMBER.split(new), strict=False)
        return NUMBER.sub("@", old) == NUMBER.sub("@", new) and all(
            one == other or self._moved_by(self.base + int(one, 16)) == int(other, 16) - int(one, 16)
            for one, other in numbers
        )

    def _moved_by(self, address: int) -> int | None:
        """How far the last symbol before an address of the ELF file has moved; None outside of sections."""
        if not any(0 <= address - s.address < len(s.data) for s in self.linked_sections):
            return None
        last = bisect.bisect(self._moves, address, key=lambda move: move[0]) - 1
        return self._moves[last][1] if last >= 0 else None

    @functools.cached_property
    def _moves(self) -> list[tuple[int, int]]:
        """Address in the ELF file and distance from there, of each symbol that the list has once."""
        everything = [symbol for found in self.linked_symbols.values() for symbol in found]
        return sorted(
            (symbol.address, self.listed[symbol.xen_name] - symbol.address)
            for symbol in everything
            if symbol.xen_name in self.listed
        )

    def _read_list(self) -> dict[str, int]:
        """Address of each symbol that the list has once, under Xen's own name for it."""
        text = read_file(self.list_path, SYMBOLS_PACKAGE).decode("ascii", "replace")
        listed: dict[str, list[int]] = {}
        for line in text.splitlines():
            found = re.fullmatch(r"0x([0-9a-f]{16}) [a-zA-Z] (\S+)", line)
            if not found:
                raise UnusableInput(
                    f"{self.list_path}: cannot be read: {line} (cf. Debian's {SYMBOLS_PACKAGE})"
                )
            listed.setdefault(found[2], []).append(int(found[1], 16))
        return {name: places[0] for name, places in listed.items() if len(places) == 1}

    def _move(self) -> None:
        """Symbols and sections where the image has them."""
        listed = self.listed
        code = [section for section in self.sections if section.executable]
        distances: dict[str, int] = {}
        symbols: dict[str, list[Symbol]] = {}
        everything = [symbol for found in self.symbols.values() for symbol in found]
        for section in code:
            inside = [s for s in everything if 0 <= s.address - section.address < len(section.data)]
            far = {listed[s.xen_name] - s.address for s in inside if s.xen_name in listed}
            if len(far) != 1:
                raise UnusableInput(
                    f"{self.list_path}: does not list {section.name} of {self.symbols_path} "
                    f"(cf. Debian's {SYMBOLS_PACKAGE})"
                )
            distances[section.name] = far.pop()
            for symbol in inside:
                moved = replace(symbol, address=symbol.address + distances[section.name])
                symbols.setdefault(symbol.name, []).append(moved)
        for symbol in everything:
            placed = any(0 <= symbol.address - s.address < len(s.data) for s in code)
            if not placed and symbol.xen_name in listed:
                moved = replace(symbol, address=listed[symbol.xen_name])
                symbols.setdefault(symbol.name, []).append(moved)
        self.symbols = symbols
        self.sections = [
            self._section(s.name, s.address + distances[s.name], len(s.data), True) for s in code
        ]
        self.sections += list(self._rest())

    def _section(self, name: str, address: int, size: int, executable: bool) -> Section:
        start = address - self.base
        return Section(name, address, self.image.flat[start : start + size], executable)

    def _rest(self) -> Iterator[Section]:
        """What is not code, of each part of the image."""
        code = [(s.address, s.address + len(s.data)) for s in self.sections]
        for name, address, size in self.image.parts:
            if name == ".buildid":
                continue
            edges = sorted({address, address + size, *(e for c in code for e in c if 0 < e - address < size)})
            for start, end in itertools.pairwise(edges):
                if not any(first <= start < last for first, last in code):
                    yield self._section(f"{name}+{start - address:#x}", start, end - start, False)


def open_hypervisor(image: Path, symbols: Path) -> Hypervisor:
    """Image and symbols of one build; which of the two images it is, its first bytes say."""
    efi = read_file(image, IMAGE_PACKAGE)[:2] == b"MZ"
    return EfiHypervisor(image, symbols) if efi else Hypervisor(image, symbols)
