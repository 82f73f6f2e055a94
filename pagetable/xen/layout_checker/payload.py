# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks of a built payload: will the stock hypervisor load it, and only the right one?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_RELOC_TYPE_x64
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from .header import Header
from .hypervisor import BUILD_ID_SIZE, Hypervisor, build_id_in, read_elf, read_file
from .report import Refused, Report, UnusableInput

BUILT_HERE = "none, it is built here"
FUNC_SIZE = 104
SUPPORTED = {"R_X86_64_64", "R_X86_64_PC32", "R_X86_64_PLT32"}
ENDBR64 = bytes.fromhex("f30f1efa")
# What a compiler may call by itself.
COMPILER_SYMBOLS = {"memcpy", "memset", "memmove", "memcmp", "__x86_return_thunk"}
INDIRECT_THUNK = "__x86_indirect_thunk_"


def check_payload(report: Report, path: Path, header: Header, hypervisor: Hypervisor) -> None:
    """Add the verdicts on a payload to the report."""
    elf = read_elf(read_file(path, BUILT_HERE), path, BUILT_HERE, "a livepatch payload")
    checks: list[tuple[str, Callable[[], None]]] = [
        ("payload: build-ids", lambda: notes(elf, path, hypervisor)),
        ("payload: relocations", lambda: relocations(elf)),
        ("payload: undefined symbols", lambda: undefined(elf, header, hypervisor)),
        ("payload: .livepatch.funcs", lambda: funcs(elf, header)),
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
        if len(data) != 16 + BUILD_ID_SIZE:
            raise Refused(f"section {name} is not one build-id note")
        build_id = build_id_in(data, path, BUILT_HERE)
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


def undefined(elf: ELFFile, header: Header, hypervisor: Hypervisor) -> None:
    """It uses only symbols that Xen has once and layout.h declares."""
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        raise Refused("the payload has no symbol table")
    for symbol in table.iter_symbols():
        if not symbol.name or symbol["st_shndx"] != "SHN_UNDEF":
            continue
        hypervisor.symbol(symbol.name)
        known = {*header.declarations, *header.prologues, *COMPILER_SYMBOLS}
        if symbol.name not in known and not symbol.name.startswith(INDIRECT_THUNK):
            raise Refused(f"{symbol.name} is used and layout.h does not declare it")


def funcs(elf: ELFFile, header: Header) -> None:
    """Each entry replaces a function of layout.h and is guarded by its prologue."""
    section = elf.get_section_by_name(".livepatch.funcs")
    data = section.data() if section else b""
    if not data or len(data) % FUNC_SIZE:
        raise Refused(f"has {len(data)} bytes: not some entries of {FUNC_SIZE}")
    for start in range(0, len(data), FUNC_SIZE):
        entry = data[start : start + FUNC_SIZE]
        old_size = int.from_bytes(entry[28:32], "little")
        version, flags = entry[32], entry[72]
        expected = entry[73 : 73 + (flags >> 1 & 31)]
        if version != 2 or not flags & 1:
            raise Refused(f"entry {start // FUNC_SIZE} has version {version}, flags {flags:#x}")
        if not any(
            expected == prologue and old_size == header.sizes.get(name)
            for name, prologue in header.prologues.items()
        ):
            raise Refused(
                f"entry {start // FUNC_SIZE} expects {expected.hex(' ')} in {old_size} bytes: "
                f"no prologue of layout.h"
            )


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
