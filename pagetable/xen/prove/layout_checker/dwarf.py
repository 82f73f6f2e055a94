# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Offsets in Xen's structs as the debugging information of the symbol file has them.

Debian 12's symbol file has none; Debian 13's has, and so have most builds of others. What is read here is a
claim like those of layout.h: it is taken for the items that move (fit.py), and for each item compared with
what the code shows (facts.py). Where the two differ, the item is refused: a file is not what it seems.

All is read from the compilation unit of one source file, arch/x86/mm.c, which has every struct that is
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elftools.dwarf.compileunit import CompileUnit
from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

SOURCE = "arch/x86/mm.c"
TYPES = {"DW_TAG_structure_type", "DW_TAG_union_type"}
DEEPEST = 16  # anonymous structs in structs
MISSING = "no such field"


@dataclass(frozen=True)
class Stated:
    """A value, and the words of C for it."""

    value: int
    what: str


def _offset(*path: str) -> Callable[[Unit], int]:
    return lambda unit: unit.offset(*path)


def _from_the_stacks_end(field: str) -> Callable[[Unit], int]:
    """From the last byte of struct cpu_info, which is that of the stack, back to a field."""
    return lambda unit: unit.size("cpu_info") - 1 - unit.offset("cpu_info", field)


def _log2(name: str) -> Callable[[Unit], int]:
    return lambda unit: unit.size(name).bit_length() - 1


ITEMS: dict[str, tuple[str, Callable[[Unit], int]]] = {
    "XEN_STACK_CURRENT": ("cpu_info.current_vcpu", _from_the_stacks_end("current_vcpu")),
    "XEN_STACK_PROCESSOR_ID": ("cpu_info.processor_id", _from_the_stacks_end("processor_id")),
    "XEN_IRQ_STAT_SHIFT": ("the size of irq_cpustat_t", _log2("irq_cpustat_t")),
    "XEN_VCPU_DOMAIN": ("vcpu.domain", _offset("vcpu", "domain")),
    "XEN_VCPU_OLD_GUEST_TABLE": ("vcpu.arch.old_guest_table", _offset("vcpu", "arch", "old_guest_table")),
    "XEN_DOMAIN_ID": ("domain.domain_id", _offset("domain", "domain_id")),
    "XEN_DOMAIN_OPTIONS": ("domain.options", _offset("domain", "options")),
    "XEN_DOMAIN_NEED_SYNC": ("domain.iommu.need_sync", _offset("domain", "iommu", "need_sync")),
    "XEN_DOMAIN_PAGING_MODE": ("domain.arch.paging.mode", _offset("domain", "arch", "paging", "mode")),
    "XEN_PAGE_INFO_SIZE": ("the size of page_info", lambda unit: unit.size("page_info")),
    "XEN_PAGE_INFO_COUNT_INFO": ("page_info.count_info", _offset("page_info", "count_info")),
    "XEN_PAGE_INFO_TYPE_INFO": (
        "page_info.u.inuse.type_info",
        _offset("page_info", "u", "inuse", "type_info"),
    ),
    "XEN_PAGE_INFO_OWNER": ("page_info.v.inuse._domain", _offset("page_info", "v", "inuse", "_domain")),
}


def stated(elf: ELFFile) -> dict[str, Stated]:
    """What the debugging information has of the items; nothing if there is none, or not of that source.

    Whatever garbage raises is the caller's to catch.
    """
    if not elf.has_dwarf_info():
        return {}
    for unit in elf.get_dwarf_info().iter_CUs():
        name = unit.get_top_DIE().attributes.get("DW_AT_name")
        if name and (b"/" + name.value).endswith(b"/" + SOURCE.encode()):
            return _read(Unit(unit))
    return {}


def _read(unit: Unit) -> dict[str, Stated]:
    found = {}
    for item, (what, read) in ITEMS.items():
        try:
            found[item] = Stated(read(unit), what)
        except KeyError:
            continue  # the passages alone show it
    return found


class Unit:
    """Types of a compilation unit, by name."""

    def __init__(self, unit: CompileUnit) -> None:
        self._types: dict[str, DIE] = {}
        for die in unit.get_top_DIE().iter_children():
            name = die.attributes.get("DW_AT_name")
            if name and _is_named_type(die):
                self._types.setdefault(name.value.decode("ascii"), die)

    def size(self, name: str) -> int:
        """The size of a struct, or of a typedef of one."""
        return int(_struct(self._types[name]).attributes["DW_AT_byte_size"].value)

    def offset(self, name: str, *fields: str) -> int:
        """Where in a struct a field of a field is; KeyError if it has no such field."""
        die, at = _struct(self._types[name]), 0
        for field in fields:
            more, die = _member(die, field)
            at += more
        return at


def _is_named_type(die: DIE) -> bool:
    return die.tag == "DW_TAG_typedef" or (die.tag in TYPES and "DW_AT_byte_size" in die.attributes)


def _struct(die: DIE) -> DIE:
    """The struct or union that a type is, seen through typedefs and qualifiers."""
    for _ in range(DEEPEST):
        if die.tag in TYPES or "DW_AT_type" not in die.attributes:
            return die
        die = die.get_DIE_from_attribute("DW_AT_type")
    raise KeyError(MISSING)


def _member(struct: DIE, name: str, deep: int = 0) -> tuple[int, DIE]:
    """Offset and type of a field, which may be one of an anonymous struct or union in it."""
    for die in struct.iter_children():
        if die.tag != "DW_TAG_member" or deep > DEEPEST:
            continue
        place = die.attributes.get("DW_AT_data_member_location")
        at = int(place.value) if place else 0
        named = die.attributes.get("DW_AT_name")
        if named and named.value == name.encode():
            return at, _struct(die.get_DIE_from_attribute("DW_AT_type"))
        if not named:
            try:
                more, inner = _member(_struct(die.get_DIE_from_attribute("DW_AT_type")), name, deep + 1)
            except KeyError:
                continue
            return at + more, inner
    raise KeyError(MISSING)
