# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The symbols of the binaries that run in a machine: Xen, a payload, a kernel module.

Invariant: load addresses come from the machine itself: from Xen's jumps into a payload, and the kernel's list
of a module's sections. If these are missing or do not agree, there are no symbols.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import Section, SymbolTableSection

from ..errors import LabError
from ..symbols import Area, Named

# Where Xen 4.17 maps each CPU's code for SYSCALL, above its image and its payloads.
_STUBS = Area("stub", 0xFFFF82D07FFF0000, 0xFFFF82D080000000)


@dataclass(frozen=True)
class Hypervisor:
    """Xen's own code; ``addresses`` has the unambiguous names."""

    area: Area
    addresses: Mapping[str, int]
    build_id: bytes

    def around(self, payload: Area | None) -> list[Area]:
        """Return all code of a running hypervisor; without a load address a payload has no names in it."""
        beside = payload or Area("payload", self.area.end, _STUBS.first)
        return [self.area, beside, _STUBS]


def _elf(content: bytes) -> ELFFile:
    return ELFFile(BytesIO(content))


def _is_code(section: Section) -> bool:
    wanted = SH_FLAGS.SHF_ALLOC | SH_FLAGS.SHF_EXECINSTR
    return bool(section["sh_flags"] & wanted == wanted)


def _symbol_table(elf: ELFFile, name: str) -> SymbolTableSection:
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        raise LabError(f"{name} has no symbols")
    return table


def hypervisor(path: Path) -> Hypervisor:
    """Read Debian's xen-syms."""
    elf = _elf(path.read_bytes())
    code = [section for section in elf.iter_sections() if _is_code(section)]
    named = [
        (symbol["st_value"], symbol.name)
        for symbol in _symbol_table(elf, str(path)).iter_symbols()
        # Entry points written in assembler have no type.
        if symbol["st_info"]["type"] in ("STT_FUNC", "STT_NOTYPE") and symbol.name
    ]
    first = min(section["sh_addr"] for section in code)
    end = max(section["sh_addr"] + section["sh_size"] for section in code)
    once = {name for name, times in Counter(name for _, name in named).items() if times == 1}
    addresses = {name: address for address, name in named if name in once}
    note = elf.get_section_by_name(".note.gnu.build-id")
    if note is None:
        raise LabError(f"{path} has no build-id")
    return Hypervisor(Area("xen", first, end, tuple(named)), addresses, note.data())


@dataclass(frozen=True)
class Payload:
    """A payload's code before Xen places it: offsets count from its first section, in Xen's layout.

    ``replaces``: an address in Xen, and the offset of the code that a jump there leads to.
    """

    size: int
    symbols: tuple[Named, ...]
    replaces: Mapping[int, int]

    def placed(self, jumps: Iterable[tuple[int, int]]) -> Area | None:
        """Return the code at the targets of jumps seen in Xen; None if there were none."""
        bases = {target - self.replaces[source] for source, target in jumps if source in self.replaces}
        if not bases:
            return None
        if len(bases) > 1:
            raise LabError("Xen's jumps into the payload are not those of the payload that was given to it")
        base = bases.pop()
        return Area("payload", base, base + self.size, tuple((base + at, name) for at, name in self.symbols))


def payload(content: bytes, addresses: Mapping[str, int]) -> Payload:
    """Read a payload; ``addresses`` are Xen's own names."""
    elf = _elf(content)
    offsets: dict[int, int] = {}
    size = 0
    for index, section in enumerate(elf.iter_sections()):
        if _is_code(section):
            align = section["sh_addralign"]
            offsets[index] = (size + align - 1) // align * align
            size = offsets[index] + section["sh_size"]
    table = _symbol_table(elf, "the payload")
    named = tuple(
        (offsets[symbol["st_shndx"]] + symbol["st_value"], f"payload:{symbol.name}")
        for symbol in table.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] in offsets
    )
    return Payload(size, named, _replaced(elf, table, offsets, addresses))


# struct livepatch_func: its size, and where its pointers are (pagetable/xen/livepatch.h).
_FUNC_SIZE, _NAME, _NEW, _OLD = 104, 0, 8, 16


def _replaced(
    elf: ELFFile, table: SymbolTableSection, offsets: Mapping[int, int], addresses: Mapping[str, int]
) -> dict[int, int]:
    relocations = elf.get_section_by_name(".rela.livepatch.funcs")
    if not isinstance(relocations, RelocationSection):
        return {}
    pointers = {
        relocation["r_offset"]: (table.get_symbol(relocation["r_info_sym"]), relocation["r_addend"])
        for relocation in relocations.iter_relocations()
    }
    replaced = {}
    for at in range(0, max(pointers) + 1, _FUNC_SIZE):
        (strings, start), (new, into) = pointers[at + _NAME], pointers[at + _NEW]
        if at + _OLD in pointers:
            old, within = pointers[at + _OLD]
            name = old.name.rpartition("#")[2]  # Xen puts a file's name before a local symbol's
        else:
            text = elf.get_section(strings["st_shndx"]).data()[strings["st_value"] + start :]
            name, within = text.split(b"\0", 1)[0].decode(), 0
        if name in addresses and new["st_shndx"] in offsets:
            replaced[addresses[name] + within] = offsets[new["st_shndx"]] + new["st_value"] + into
    return replaced


def module(name: str, content: bytes, sections: Mapping[str, int]) -> list[Area]:
    """Read a kernel module; ``sections`` says where each of its sections was loaded.

    Its init sections are left out: their memory has been freed, and may be another module's.
    """
    elf = _elf(content)
    by_section: dict[int, list[Named]] = {}
    for symbol in _symbol_table(elf, f"module {name}").iter_symbols():
        if symbol["st_info"]["type"] in ("STT_FUNC", "STT_NOTYPE") and symbol.name:
            by_section.setdefault(symbol["st_shndx"], []).append((symbol["st_value"], symbol.name))
    areas = []
    for index, section in enumerate(elf.iter_sections()):
        base = sections.get(section.name)
        if base is None or section.name.startswith(".init") or not section["sh_size"]:
            continue
        if _is_code(section):
            named = tuple((base + at, f"{name}:{symbol}") for at, symbol in by_section.get(index, ()))
            areas.append(Area(name, base, base + section["sh_size"], named))
    return areas
