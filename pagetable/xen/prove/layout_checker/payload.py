# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks of a built payload: will the stock hypervisor load it, and only the right one?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_RELOC_TYPE_x64
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from . import known_functions
from .header import Header
from .hypervisor import BUILD_ID_SIZE, Hypervisor, Symbol, build_id_in, read_elf, read_file
from .loops import Loop
from .report import Refused, Report, UnusableInput
from .trampoline import check_trampoline

BUILT_HERE = "none, it is built here"
FUNC_SIZE = 104
SUPPORTED = {"R_X86_64_64", "R_X86_64_PC32", "R_X86_64_PLT32"}
ENDBR64 = bytes.fromhex("f30f1efa")
# What a compiler may call by itself.
COMPILER_SYMBOLS = {"memcpy", "memset", "memmove", "memcmp", "__x86_return_thunk"}
# Offsets in struct livepatch_func.
NEW_ADDRESS = 8
OLD_ADDRESS = 16
INDIRECT_THUNK = "__x86_indirect_thunk_"


def check_payload(
    report: Report,
    path: Path,
    header: Header,
    hypervisor: Hypervisor,
    loops: list[Loop],
    missing: Iterable[str] = (),
) -> None:
    """Add the verdicts on a payload to the report; it must be without the `missing` parts."""
    elf = read_elf(read_file(path, BUILT_HERE), path, BUILT_HERE, "a livepatch payload")
    checks: list[tuple[str, Callable[[], None]]] = [
        ("payload: build-ids", lambda: notes(elf, path, hypervisor)),
        ("payload: relocations", lambda: relocations(elf)),
        ("payload: undefined symbols", lambda: undefined(elf, header, hypervisor, loops)),
        ("payload: .livepatch.funcs", lambda: funcs(elf, header, hypervisor, loops)),
        ("payload: parts", lambda: parts(elf, header, missing)),
        ("payload: trampolines", lambda: trampolines(elf, loops)),
        ("payload: hooks", lambda: hooks(elf)),
    ]
    for item, check in checks:
        try:
            check()
        except Refused as refusal:
            report.refuse(item, str(refusal))
        except UnusableInput:
            raise
        except Exception as error:  # pyelftools raises whatever garbage makes it stumble over
            raise UnusableInput(
                f"{path}: not a livepatch payload: {error or type(error).__name__}"
            ) from error
        else:
            report.accept(item)


def notes(elf: ELFFile, path: Path, hypervisor: Hypervisor) -> None:
    """It depends on this hypervisor and has a build-id of its own."""
    for name in (".livepatch.depends", ".livepatch.xen_depends", ".note.gnu.build-id"):
        section = elf.get_section_by_name(name)
        if section is None:
            raise Refused(f"section {name} is missing")
        data = section.data()
        size = BUILD_ID_SIZE if name == ".note.gnu.build-id" else len(hypervisor.build_id)
        if len(data) != 16 + size:
            raise Refused(f"section {name} is not one build-id note of {size} bytes")
        build_id = build_id_in(data, path, BUILT_HERE, size)
        if (build_id == hypervisor.build_id) != (name != ".note.gnu.build-id"):
            raise Refused(f"section {name} has {build_id.hex()}")


def relocations(elf: ELFFile) -> None:
    """It has no relocation that Xen's loader does not know."""
    names = {number: name for name, number in ENUM_RELOC_TYPE_x64.items()}
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection):
            continue
        for relocation in section.iter_relocations():
            kind = names.get(relocation["r_info_type"], str(relocation["r_info_type"]))
            if kind not in SUPPORTED:
                raise Refused(f"{kind} in {section.name}: Xen knows only {sorted(SUPPORTED)}")


def undefined(elf: ELFFile, header: Header, hypervisor: Hypervisor, loops: list[Loop]) -> None:
    """It uses only symbols that Xen has once, and that layout.h declares or a proven loop is in."""
    looped = {loop.function for loop in loops}
    for symbol in symbols_of(elf).iter_symbols():
        if not symbol.name or symbol["st_shndx"] != "SHN_UNDEF":
            continue
        if symbol.name in looped or symbol.name.rpartition("#")[2] in header.prologues:
            stock_loop_function(hypervisor, symbol.name)
            continue
        hypervisor.symbol(symbol.name)
        known = {*header.declarations, *COMPILER_SYMBOLS}
        if symbol.name not in known and not symbol.name.startswith(INDIRECT_THUNK):
            raise Refused(f"{symbol.name} is used and layout.h does not declare it")


def stock_loop_function(hypervisor: Hypervisor, xen_name: str) -> Symbol:
    """The function that Xen's lookup finds under this name."""
    symbol = hypervisor.symbol(xen_name.rpartition("#")[2])
    if symbol.xen_name != xen_name or symbol.kind != "function":
        raise Refused(f"{xen_name} is the {symbol.kind} {symbol.xen_name}")
    return symbol


def symbols_of(elf: ELFFile) -> SymbolTableSection:
    """The payload's symbol table."""
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        raise Refused("the payload has no symbol table")
    return table


def relocated(elf: ELFFile, section_name: str) -> dict[int, tuple[str, int, str]]:
    """Place in a section to (symbol or section, addend, kind) of what is put there."""
    names = {number: name for name, number in ENUM_RELOC_TYPE_x64.items()}
    table = symbols_of(elf)
    found: dict[int, tuple[str, int, str]] = {}
    section = elf.get_section_by_name(f".rela{section_name}")
    if not isinstance(section, RelocationSection):
        return found
    for relocation in section.iter_relocations():
        symbol = table.get_symbol(relocation["r_info_sym"])
        name = symbol.name
        if symbol["st_info"]["type"] == "STT_SECTION":
            name = elf.get_section(symbol["st_shndx"]).name
        kind = names.get(relocation["r_info_type"], "?")
        found[relocation["r_offset"]] = (name, relocation["r_addend"], kind)
    return found


def funcs(elf: ELFFile, header: Header, hypervisor: Hypervisor, loops: list[Loop]) -> None:
    """Each entry replaces a function of layout.h or enters a proven loop, guarded by its bytes."""
    section = elf.get_section_by_name(".livepatch.funcs")
    data = section.data() if section else b""
    if not data or len(data) % FUNC_SIZE:
        raise Refused(f"has {len(data)} bytes: not some entries of {FUNC_SIZE}")
    places = relocated(elf, ".livepatch.funcs")
    entered: list[str] = []
    for start in range(0, len(data), FUNC_SIZE):
        entry = data[start : start + FUNC_SIZE]
        number = start // FUNC_SIZE
        old_size = int.from_bytes(entry[28:32], "little")
        version, flags = entry[32], entry[72]
        expected = entry[73 : 73 + (flags >> 1 & 31)]
        if version != 2 or not flags & 1:
            raise Refused(f"entry {number} has version {version}, flags {flags:#x}")
        what = f"entry {number} expects {expected.hex(' ')} in {old_size} bytes"
        if start + OLD_ADDRESS in places:
            place = places[start + OLD_ADDRESS]
            entered.append(loop_entry(what, place, old_size, expected, hypervisor, loops))
        elif any(entry[OLD_ADDRESS : OLD_ADDRESS + 8]):
            raise Refused(f"{what}: its old address is a number")
        elif not any(
            expected == prologue and old_size == header.sizes.get(name)
            for name, prologue in header.prologues.items()
        ):
            raise Refused(f"{what}: no prologue of layout.h")
    if sorted(entered) != sorted(loop.name for loop in loops):
        raise Refused(f"enters {sorted(entered)}: not each proven loop once")


def parts(elf: ELFFile, header: Header, missing: Iterable[str]) -> None:
    """A part that was not proven is not there, and the payload says which."""
    replaced = {name for part in known_functions.PARTS if part.name in missing for name in part.replaced}
    section = elf.get_section_by_name(".livepatch.funcs")
    data = section.data() if section else b""
    for start in range(0, len(data) - FUNC_SIZE + 1, FUNC_SIZE):
        entry = data[start : start + FUNC_SIZE]
        expected = entry[73 : 73 + (entry[72] >> 1 & 31)]
        old_size = int.from_bytes(entry[28:32], "little")
        for name in replaced:
            if (expected, old_size) == (header.prologues.get(name), header.sizes.get(name)):
                raise Refused(f"replaces {name}, which is of a part that is not proven for this Xen")
    for name in {name for part in known_functions.PARTS if part.name in missing for name in part.called}:
        if symbols_of(elf).get_symbol_by_name(name):
            raise Refused(f"has {name}, which is of a part that is not proven for this Xen")
    section = elf.get_section_by_name(".trapless.left_out")
    said = section.data().decode("ascii", "replace") if section else ""
    if [line.partition(":")[0] for line in said.splitlines()] != list(missing):
        raise Refused(f"says that it is without '{said.strip()}', not {list(missing)}")


def loop_entry(
    what: str,
    place: tuple[str, int, str],
    old_size: int,
    expected: bytes,
    hypervisor: Hypervisor,
    loops: list[Loop],
) -> str:
    """The name of the proven loop that an entry inside a function enters."""
    function, offset, _ = place
    for loop in loops:
        if (function, offset) != (loop.function, loop.offset):
            continue
        found = hypervisor.read(stock_loop_function(hypervisor, function).address + offset, len(loop.code))
        if expected != found or expected != loop.code or old_size != len(found):
            raise Refused(f"{what}: at {function}+{offset:#x}, the head of {loop.name}, is {found.hex(' ')}")
        return loop.name
    raise Refused(f"{what}: {function}+{offset:#x} is not the head of a proven loop")


def trampolines(elf: ELFFile, loops: list[Loop]) -> None:
    """Each loop's entry leads to a trampoline of the form that zero_runs.S gives it."""
    section = elf.get_section_by_name(".text")
    code = section.data() if section else b""
    links = relocated(elf, ".text")
    led = {
        place[:2]: relocated(elf, ".livepatch.funcs")[offset - OLD_ADDRESS + NEW_ADDRESS]
        for offset, place in relocated(elf, ".livepatch.funcs").items()
        if offset % FUNC_SIZE == OLD_ADDRESS
    }
    symbols = {symbol.name: symbol for symbol in symbols_of(elf).iter_symbols()}
    for loop in loops:
        symbol = symbols.get(f"zero_run_{loop.name}")
        if symbol is None or not symbol["st_size"]:
            raise Refused(f"{loop.name}: there is none")
        start, size = symbol["st_value"], symbol["st_size"]
        name, addend, _ = led.get((loop.function, loop.offset), ("", 0, ""))
        if (name, addend) not in ((".text", start), (symbol.name, 0)):
            raise Refused(f"{loop.name}: its entry leads elsewhere")
        inside = {place - start: link for place, link in links.items() if start <= place < start + size}
        check_trampoline(loop, code[start : start + size], inside)


def hooks(elf: ELFFile) -> None:
    """Xen calls hooks through a pointer: one each, and each begins with endbr64."""
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection):
            continue
        if not section.name.startswith(".rela.livepatch.hooks."):
            continue
        name = section.name.removeprefix(".rela")
        pointers = elf.get_section(section["sh_info"])
        if pointers["sh_size"] != 8 or section.num_relocations() != 1:
            raise Refused(f"{name} does not have exactly one function")
        relocation = section.get_relocation(0)
        table = elf.get_section(section["sh_link"])
        if not isinstance(table, SymbolTableSection):
            raise Refused(f"{section.name} has no symbol table")
        symbol = table.get_symbol(relocation["r_info_sym"])
        if symbol["st_shndx"] == "SHN_UNDEF":
            raise Refused(f"{name} leads to {symbol.name}, which is not in the payload")
        code = elf.get_section(symbol["st_shndx"]).data()
        start = symbol["st_value"] + relocation["r_addend"]
        if code[start : start + 4] != ENDBR64:
            raise Refused(f"{name}: the function does not begin with endbr64")
