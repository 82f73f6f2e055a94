# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A built payload's trampolines, linked to an address as Xen's loader would, and the jumps to them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.sections import SymbolTableSection

from layout_checker.hypervisor import Hypervisor, read_elf, read_file
from layout_checker.loops import Loop
from layout_checker.payload import BUILT_HERE, relocated
from layout_checker.report import Refused
from layout_checker.trampoline import RUN_SWITCH, RUNS, SWITCH

PC_RELATIVE = {"R_X86_64_PC32", "R_X86_64_PLT32"}
BELOW_THE_IMAGE = 1 << 20
JUMP = b"\xe9"


class Trampolines:
    """The trampolines of some loops at an address near the hypervisor."""

    def __init__(
        self,
        hypervisor: Hypervisor,
        payload: Path,
        loops: list[Loop],
        enabled: bool = True,
        runs: bool = True,
    ) -> None:
        elf = read_elf(read_file(payload, BUILT_HERE), payload, BUILT_HERE, "a livepatch payload")
        table = elf.get_section_by_name(".symtab")
        section = elf.get_section_by_name(".text")
        if not isinstance(table, SymbolTableSection) or section is None:
            raise Refused(f"{payload}: has no symbol table or no code")
        symbols = {symbol.name: symbol for symbol in table.iter_symbols()}
        self.address = (hypervisor.base & ~0xFFFFF) - BELOW_THE_IMAGE
        switches = {SWITCH: self.address, RUN_SWITCH: self.address + 1}
        self.enabled, self.asks_for_runs = enabled, runs
        self.code = bytearray(section.data())
        self.start = self.address + 64
        self.jumps: list[tuple[int, int]] = []
        # Where the functions of plain_runs.c are: a run is played, as other functions are.
        self.runs = {
            self.start + symbols[name]["st_value"]: name
            for name in RUNS.values()
            if name in symbols and symbols[name]["st_shndx"] != "SHN_UNDEF"
        }
        functions = {name: address for address, name in self.runs.items()}
        for loop in loops:
            symbol = symbols.get(f"zero_run_{loop.name}")
            if symbol is None:
                raise Refused(f"{payload}: has no zero_run_{loop.name}")
            function = hypervisor.symbol(loop.function.rpartition("#")[2]).address
            self.jumps.append((function + loop.offset, self.start + symbol["st_value"]))
            extent = range(symbol["st_value"], symbol["st_value"] + symbol["st_size"])
            for place, (name, addend, kind) in relocated(elf, ".text").items():
                if place in extent:
                    target = {loop.function: function, **switches, **functions}.get(name)
                    if target is None or kind not in PC_RELATIVE:
                        raise Refused(f"{payload}: zero_run_{loop.name} refers to {name} by {kind}")
                    offset = target + addend - (self.start + place)
                    self.code[place : place + 4] = struct.pack("<i", offset)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """What to write where."""
        yield self.address, bytes([self.enabled, self.asks_for_runs])
        yield self.start, bytes(self.code)
        for head, target in self.jumps:
            yield head, JUMP + struct.pack("<i", target - head - 5)
