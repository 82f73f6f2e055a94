# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The installed hypervisor: the image that boots and the symbols that describe it.

Debian ships Xen's image without symbols (``xen-hypervisor-VERSION-amd64``) and the file it was made
from with them (``xen-hypervisor-VERSION-amd64-dbg``). All that is read here is read from the image;
the other file gives names to its addresses, once both have been shown to be the same build.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import capstone
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from .dwarf import Stated, stated
from .report import Refused, UnusableInput

IMAGE_PACKAGE = "xen-hypervisor-VERSION-amd64"
SYMBOLS_PACKAGE = "xen-hypervisor-VERSION-amd64-dbg"
BUILD_ID_SIZE = 20
LARGEST_FILE = 64 << 20
LARGEST_TABLE = 1 << 20
LONGEST_WAY = 32  # instructions

ELF = b"\x7fELF"
# Undefined, as ud2 is. Xen 4.22 marks bugs by it, and capstone does not know it.
UDB = 0xD6
# Capstone 4, which Debian 12 has, does not know shadow stacks either: of those, what Xen has in alternatives.
SHADOW_STACK = re.compile(rb"\xf3(\x48?)\x0f(\x1e[\xc8-\xcf]|\xae[\xe8-\xef])")
REGISTERS = ("ax", "cx", "dx", "bx", "sp", "bp", "si", "di")
SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
KINDS = {1: "variable", 2: "function", 4: "file"}
BINDINGS = ("local", "global")


def unknown_to_capstone(code: bytes) -> tuple[int, str, str] | None:
    """Size, mnemonic and operands of an instruction that some releases of capstone do not know."""
    if code[:1] == bytes([UDB]):
        return 1, "ud2", ""
    if not (found := SHADOW_STACK.match(code)):
        return None
    wide, (operation, register) = found[1], found[2]
    mnemonic = ("rdssp" if operation == 0x1E else "incssp") + ("q" if wide else "d")
    return found.end(), mnemonic, ("r" if wide else "e") + REGISTERS[register & 7]


@dataclass(frozen=True)
class Symbol:
    """A symbol that the symbol file defines."""

    name: str
    address: int
    size: int
    kind: str
    binding: str
    file: str = ""  # of a local symbol

    @property
    def xen_name(self) -> str:
        """The name by which Xen's own lookup knows it."""
        return f"{self.file}#{self.name}" if self.binding == "local" else self.name


@dataclass(frozen=True)
class Section:
    """A section of the symbol file that is part of the image."""

    name: str
    address: int
    data: bytes
    executable: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction; `text` has symbols instead of the addresses they stand for."""

    address: int
    size: int
    mnemonic: str
    operands: str
    text: str

    @property
    def target(self) -> int | None:
        """Where a direct jump or call leads."""
        is_branch = self.mnemonic.startswith("j") or self.mnemonic == "call"
        return int(self.operands, 16) if is_branch and self.operands.startswith("0x") else None


def read_elf(data: bytes, path: Path, package: str, what: str, machine: str = "EM_X86_64") -> ELFFile:
    """An ELF file for this machine whose sections and segments lie within the file."""
    problem = f"{path}: not {what} (cf. Debian's {package})"
    if not data.startswith(ELF):
        raise UnusableInput(problem)
    try:
        elf = ELFFile(io.BytesIO(data))
        if elf["e_machine"] != machine:
            raise UnusableInput(f"{problem}: it is for {elf['e_machine']}, not for {machine}")
        if max(elf.num_sections(), elf.num_segments()) > 4096:
            raise UnusableInput(problem)
        for section in elf.iter_sections():
            size = section["sh_size"] if section["sh_type"] != "SHT_NOBITS" else 0
            if section["sh_offset"] + size > len(data):
                raise UnusableInput(f"{problem}: a section lies outside the file")
        for segment in elf.iter_segments():
            if segment["p_offset"] + segment["p_filesz"] > len(data):
                raise UnusableInput(f"{problem}: a segment lies outside the file")
    except UnusableInput:
        raise
    except Exception as error:  # pyelftools raises whatever garbage makes it stumble over
        raise UnusableInput(f"{problem}: {error or type(error).__name__}") from error
    return elf


def read_file(path: Path, package: str) -> bytes:
    """A file of bounded size."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UnusableInput(f"{path}: too large to come from Debian package {package}")
        return path.read_bytes()
    except OSError as error:
        raise UnusableInput(f"{path}: {error.strerror} (cf. Debian's {package})") from error


def build_id_in(notes: bytes, path: Path, package: str, size: int = BUILD_ID_SIZE) -> bytes:
    """The GNU build-id in a note section's bytes."""
    header = bytes([4, 0, 0, 0, size, 0, 0, 0, 3, 0, 0, 0]) + b"GNU\0"
    start = notes.find(header)
    build_id = notes[start + len(header) : start + len(header) + size]
    if start < 0 or len(build_id) != size:
        raise UnusableInput(f"{path}: has no GNU build-id (cf. Debian's {package})")
    return build_id


class Image:
    """The file that boots: one flat segment in a 32-bit ELF wrapper, compressed or not."""

    def __init__(self, path: Path):
        self.path = path
        packed = read_file(path, IMAGE_PACKAGE)
        what = "an image of Xen"
        try:
            with gzip.open(io.BytesIO(packed)) as stream:
                data = packed if packed.startswith(ELF) else stream.read(LARGEST_FILE)
        except (OSError, EOFError, zlib.error) as error:
            raise UnusableInput(f"{path}: not {what} (cf. Debian's {IMAGE_PACKAGE}): {error}") from error
        elf = read_elf(data, path, IMAGE_PACKAGE, what, "EM_386")
        try:
            segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
            self.flat: bytes = segments["PT_LOAD"].data()
            notes: bytes = segments["PT_NOTE"].data()
        except Exception as error:  # as in read_elf
            raise UnusableInput(f"{path}: not {what} (cf. Debian's {IMAGE_PACKAGE}): no {error}") from error
        self.build_id = build_id_in(notes, path, IMAGE_PACKAGE)


class Hypervisor:
    """Image and symbols of one build."""

    image_type: type[Image] = Image

    def __init__(self, image: Path, symbols: Path):
        self.image = self.image_type(image)
        self.symbols_path = symbols
        what = "Xen's symbol file"
        elf = read_elf(read_file(symbols, SYMBOLS_PACKAGE), symbols, SYMBOLS_PACKAGE, what, "EM_X86_64")
        try:
            self._read_symbols(elf)
        except UnusableInput:
            raise
        except Exception as error:  # as in read_elf
            raise UnusableInput(
                f"{symbols}: not {what} (cf. Debian's {SYMBOLS_PACKAGE}): {error or type(error).__name__}"
            ) from error
        self._elf = elf
        self._disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self.forget()

    def forget(self) -> None:
        """Forget all that was found in image and symbols."""
        self._functions: dict[str, list[Instruction]] = {}
        self._texts: dict[tuple[str, str], str] = {}
        # Of known_functions.py: what a function's digest was made of, and the digest.
        self.digests: dict[int, Any] = {}
        # Of clobbers.py: what a function's graph was made of, and the graph.
        self.graphs: dict[int, Any] = {}
        for name, attribute in vars(Hypervisor).items():
            if isinstance(attribute, cached_property):
                self.__dict__.pop(name, None)

    @property
    def described(self) -> Hypervisor:
        """The same code, in a file in which all that it refers to has a name."""
        return self

    def _read_symbols(self, elf: ELFFile) -> None:
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        table = elf.get_section_by_name(".symtab")
        if not loads or not isinstance(table, SymbolTableSection):
            raise UnusableInput(
                f"{self.symbols_path}: has no symbol table or no segment (cf. Debian's {SYMBOLS_PACKAGE})"
            )
        if table.num_symbols() > LARGEST_TABLE:
            raise ValueError("the symbol table is too large")
        self.base: int = loads[0]["p_vaddr"]
        self.sections = [
            Section(s.name, s["sh_addr"], s.data(), bool(s["sh_flags"] & 4))
            for s in elf.iter_sections()
            if s["sh_flags"] & 2 and s["sh_type"] in ("SHT_PROGBITS", "SHT_NOTE")
        ]
        note = elf.get_section_by_name(".note.gnu.build-id")
        self.build_id = build_id_in(note.data() if note else b"", self.symbols_path, SYMBOLS_PACKAGE)
        self.symbols: dict[str, list[Symbol]] = {}
        strings: bytes = elf.get_section(table["sh_link"]).data()
        file = ""
        for name_at, info, _, section, value, size in SYMBOL.iter_unpack(table.data()):
            name = strings[name_at : strings.index(b"\0", name_at)].decode("ascii")
            kind, binding = KINDS.get(info & 15, "?"), BINDINGS[info >> 4 == 1]
            if kind == "file":
                file = name
            elif name and section:
                self.symbols.setdefault(name, []).append(
                    Symbol(name, value, size, kind, binding, file if binding == "local" else "")
                )

    @cached_property
    def stated(self) -> dict[str, Stated]:
        """What the symbol file's debugging information has of the items of layout.h, if it has any."""
        try:
            return stated(self._elf)
        except Exception as error:  # as in read_elf
            raise UnusableInput(
                f"{self.symbols_path}: its debugging information cannot be read: "
                f"{error or type(error).__name__}"
            ) from error

    @property
    def compared(self) -> list[str]:
        """Sections whose contents are the same in both files."""
        return [section.name for section in self.sections]

    def demand_one_build(self) -> None:
        """Refuse unless both files are of one build: they carry the same build-id."""
        if self.image.build_id != self.build_id:
            raise Refused(
                f"{self.image.path} is {self.image.build_id.hex()}, "
                f"{self.symbols_path} is {self.build_id.hex()}"
            )

    @property
    def version(self) -> tuple[int, int]:
        """Which Xen it is, such as (4, 17): what its own code tells a guest that asks."""
        return self._constant("xen_major_version"), self._constant("xen_minor_version")

    def _constant(self, function: str) -> int:
        """What a function returns that returns a number and does nothing else."""
        code = self.text(function)
        found = re.fullmatch(
            r"(?:endbr64\n)?mov eax, (0x[0-9a-f]+|\d+)\n(?:ret|jmp __x86_return_thunk)\n", code
        )
        if not found:
            raise Refused(f"{function} does not return a number")
        return int(found[1], 0)

    @cached_property
    def _names(self) -> dict[int, str]:
        """The name of each address that has one; a global name rather than a local one."""
        names: dict[int, str] = {}
        for symbols in self.symbols.values():
            for symbol in symbols:
                if symbol.binding == "global" or symbol.address not in names:
                    names[symbol.address] = symbol.name
        return names

    def symbol(self, name: str) -> Symbol:
        """The only symbol of this name, as Xen's own lookup needs it."""
        found = self.symbols.get(name, [])
        if len(found) != 1:
            raise Refused(f"the symbol table has {name} {len(found)} times, not once")
        return found[0]

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the image that boots."""
        start = address - self.base
        data = self.image.flat[start : start + size] if start >= 0 else b""
        if len(data) != size:
            raise Refused(f"{size} bytes at {address:#x} are outside the image")
        return data

    def function(self, name: str) -> list[Instruction]:
        """The instructions of a function, all of it."""
        if name not in self._functions:
            symbol = self.symbol(name)
            if symbol.kind != "function" or not symbol.size:
                raise Refused(f"{name} is not a function with a size")
            self._functions[name] = self.disassemble(symbol.address, symbol.size)
        return self._functions[name]

    def text(self, name: str, along: str = "") -> str:
        """A function's instructions, one a line. The compiler's only clone of it stands for it.

        With `along`: what follows that instruction, jumps that are always taken left out and followed.
        """
        if (name, along) not in self._texts:
            self._texts[name, along] = self._text(name, along)
        return self._texts[name, along]

    def _text(self, name: str, along: str) -> str:
        if name not in self.symbols:
            clone = re.compile(re.escape(name) + r"\.(?:isra|constprop|part)\.\d+")
            clones = [symbol for symbol in self.symbols if clone.fullmatch(symbol)]
            if len(clones) == 1:
                name = clones[0]
        code = self.function(name)
        if along:
            code = [i for place in code if place.text == along for i in self._way(code, place.address)]
        return "".join(f"{instruction.text}\n" for instruction in code)

    @staticmethod
    def _way(code: list[Instruction], address: int) -> Iterator[Instruction]:
        by_address = {instruction.address: instruction for instruction in code}
        for _ in range(LONGEST_WAY):
            instruction = by_address.get(address)
            if instruction is None:
                return
            address = instruction.address + instruction.size
            if instruction.mnemonic == "jmp":
                address = instruction.target or 0
            else:
                yield instruction

    def disassemble(self, address: int, size: int) -> list[Instruction]:
        """Instructions that fill these bytes exactly."""
        code = self.read(address, size)
        instructions = []
        end = address
        while end < address + size:
            start = end
            for at, length, mnemonic, operands in self._disassembler.disasm_lite(code[end - address :], end):
                end = at + length
                text = f"{mnemonic} {self._symbolic(operands, end)}".rstrip()
                instructions.append(Instruction(at, length, mnemonic.split()[-1], operands, text))
            if unknown := unknown_to_capstone(code[end - address :]):
                length, mnemonic, operands = unknown
                text = f"{mnemonic} {operands}".rstrip()
                instructions.append(Instruction(end, length, mnemonic, operands, text))
                end += length
            if end == start:
                break
        if end != address + size:
            raise Refused(f"not the end of an instruction at {address + size:#x}")
        return instructions

    def leading(self, address: int, size: int) -> Iterator[Instruction]:
        """Whole instructions from an address on; the last may end before the bytes do."""
        for start, length, mnemonic, operands in self._disassembler.disasm_lite(
            self.read(address, size), address
        ):
            yield Instruction(start, length, mnemonic, operands, f"{mnemonic} {operands}")

    def _symbolic(self, operands: str, next_address: int) -> str:
        if operands.startswith("0xffff"):
            return self._names.get(int(operands, 16), operands)
        relative = re.search(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]", operands)
        if not relative:
            return operands
        offset = int(relative[2], 0) * (1 if relative[1] == "+" else -1)
        target = next_address + offset
        return operands.replace(relative[0], f"[{self._names.get(target, hex(target))}]")

    @cached_property
    def _function_starts(self) -> list[tuple[int, str]]:
        return sorted(
            (symbol.address, symbol.name)
            for symbols in self.symbols.values()
            for symbol in symbols
            if symbol.kind == "function"
        )

    @cached_property
    def function_starts(self) -> tuple[int, ...]:
        """Where functions begin, sorted."""
        return tuple(sorted({address for address, _ in self._function_starts}))

    @cached_property
    def _extents(self) -> tuple[list[int], list[Symbol]]:
        """Symbols by their first address, one at each: a function or variable, a global one first."""
        best: dict[int, Symbol] = {}
        for symbols in self.symbols.values():
            for symbol in symbols:
                other = best.get(symbol.address)
                if other is None or _rank(symbol) < _rank(other):
                    best[symbol.address] = symbol
        starts = sorted(best)
        return starts, [best[start] for start in starts]

    def symbol_at(self, address: int) -> Symbol | None:
        """The symbol that an address is in, or at; none if the last one before it ends before it."""
        starts, symbols = self._extents
        index = bisect_right(starts, address) - 1
        if index < 0:
            return None
        symbol = symbols[index]
        return symbol if address == symbol.address or address < symbol.address + symbol.size else None

    def function_at(self, address: int) -> str:
        """The function that an address belongs to."""
        index = bisect_right(self._function_starts, (address, "\uffff")) - 1
        return self._function_starts[index][1] if index >= 0 else hex(address)

    @cached_property
    def _direct_branches(self) -> list[tuple[int, int]]:
        """(to, from) of everything in executable sections that could be a direct branch, sorted.

        Near jumps and calls are looked for at every byte, decoded or not, so none is missed.
        Short jumps reach 128 bytes; see `short_branches_near`.
        """
        found: list[tuple[int, int]] = []
        for section in self.sections:
            if section.executable:
                found += near_branches(self.read(section.address, len(section.data)), section.address)
        return sorted(found)

    def branches_into(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(from, to) of what could be a direct near branch to these addresses."""
        for target, origin in between(self._direct_branches, first, last):
            yield origin, target

    def short_branches_near(self, address: int) -> Iterator[Instruction]:
        """Direct branches of the functions within reach of a short jump to this address."""
        names = {self.function_at(address + step) for step in range(-130, 260)}
        for name in sorted(names):
            for instruction in self.function(name):
                if instruction.target is not None:
                    yield instruction

    def pointers_into(self, first: int, last: int) -> list[int]:
        """Addresses of data that hold an address of code, absolute or relative to themselves."""
        start, end = self._code
        if not start <= first <= last < end:
            raise Refused(f"{first:#x} is not code")
        return [place for _, place in between(self._code_pointers, first, last)]

    @property
    def _code(self) -> tuple[int, int]:
        """Where code begins and ends."""
        code = [(s.address, s.address + len(s.data)) for s in self.sections if s.executable]
        if not code:
            raise Refused("the image has no code")
        return min(start for start, _ in code), max(end for _, end in code)

    @cached_property
    def _code_pointers(self) -> list[tuple[int, int]]:
        """(to, place) of all that could be an address of code, at every byte, sorted."""
        start, end = self._code
        found = list(absolute_pointers(self.image.flat, self.base, start, end))
        for section in self.sections:
            if not section.executable and section.name != ".note.gnu.build-id":
                data = self.read(section.address, len(section.data))
                found += relative_pointers(data, section.address, start, end)
        return sorted(found)


def _rank(symbol: Symbol) -> tuple[bool, bool, int, str]:
    return symbol.kind not in ("function", "variable"), symbol.binding == "local", -symbol.size, symbol.name


def between(found: list[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """What of a sorted list leads to these addresses."""
    for index in range(bisect_left(found, (first, 0)), len(found)):
        if found[index][0] > last:
            return
        yield found[index]


def near_branches(code: bytes, address: int) -> Iterator[tuple[int, int]]:
    """(to, from) of every byte that could begin a near jump or call."""
    for match in re.finditer(rb"[\xe8\xe9]|\x0f[\x80-\x8f]", code):
        operand = code[match.end() : match.end() + 4]
        if len(operand) == 4:
            offset = int.from_bytes(operand, "little", signed=True)
            yield address + match.end() + 4 + offset, address + match.start()


def absolute_pointers(data: bytes, address: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(to, place) of eight bytes, wherever they begin, that are an address from start to before end."""
    pairs = zip(start.to_bytes(8, "big"), (end - 1).to_bytes(8, "big"), strict=True)
    common = bytes(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    for match in re.finditer(b"(?=" + re.escape(common[::-1]) + b")", data):
        place = match.start() + len(common) - 8
        target = int.from_bytes(data[place : place + 8], "little") if place >= 0 else 0
        if start <= target < end:
            yield target, address + place


def relative_pointers(data: bytes, address: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(to, place) of four bytes, wherever they begin, that lead from themselves to start up to before end."""
    for skew in range(4):
        words = memoryview(data)[skew : skew + len(data[skew:]) // 4 * 4].cast("i")
        for place, offset in zip(itertools.count(address + skew, 4), words, strict=False):
            if start <= place + offset < end:
                yield place + offset, place
