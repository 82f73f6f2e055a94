# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where Xen makes a page a table of a level, or a page of segment descriptors.

Invariant: the addresses are found in the installed hypervisor's own disassembly, by its comparisons with each
type; if the comparisons are not as expected, there are no addresses at all.
"""

from collections.abc import Iterator, Sequence

from capstone import CS_ARCH_X86, CS_MODE_64, Cs, CsInsn
from capstone.x86 import X86_OP_IMM, X86_OP_REG
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from .. import host
from ..errors import LabError
from ..plugins.spans import Plan
from ..profiler import profile

TYPES = ("l1", "l2", "l3", "l4", "seg_desc")
"""In the order of Xen's numbers for them, from 1."""

_SEG_DESC = TYPES.index("seg_desc")

FIRST_ID = 0x50
_TYPE_SHIFT = 61
_ADDRESS = (1 << 64) - 1  # of an operand, which is signed
_TYPING, _DESCRIPTORS = "_get_page_type", "validate_segdesc_page"


def plan() -> Plan:
    """Return a plan that has an event wherever a page of a type is about to be validated."""
    xen = profile.hypervisor()
    tables = [(address, type) for type, address in _branches(list(_typing()))]
    where = [*tables, (xen.addresses[_DESCRIPTORS], _SEG_DESC)]
    return Plan(events=[(address, FIRST_ID + type) for address, type in where])


def _typing() -> Iterator[CsInsn]:
    """Disassemble the function that gives a page its type."""
    path = host.xen().symbols
    with path.open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".symtab")
        symbols = table.get_symbol_by_name(_TYPING) if isinstance(table, SymbolTableSection) else None
        if symbols is None or len(symbols) != 1:
            raise LabError(f"{path} has not one {_TYPING}")
        start, size = symbols[0]["st_value"], symbols[0]["st_size"]
        section = elf.get_section(symbols[0]["st_shndx"])
        code = section.data()[start - section["sh_addr"] :][:size]
    disassembler = Cs(CS_ARCH_X86, CS_MODE_64)
    disassembler.detail = True
    yield from disassembler.disasm(code, start)


def _branches(code: Sequence[CsInsn]) -> list[tuple[int, int]]:
    """Return (type, address) of each place that is reached only for a table of one type.

    It is the target of a comparison with the type's number, if equal; there are two for each type, one
    of them for pages with an owner. Pages of descriptors are validated in a function of their own.
    """
    found = []
    for at, constant in enumerate(code[:-3]):
        type = _type_loaded(constant)
        compare, jump, beyond = code[at + 1 : at + 4]
        if type is None or not _compares(constant, compare):
            continue
        if jump.mnemonic == "je":
            found.append((type, jump.operands[0].imm & _ADDRESS))
        elif jump.mnemonic == "jne":
            found.append((type, beyond.address))
    counts = [sum(type == wanted for type, _ in found) for wanted in range(_SEG_DESC)]
    if any(count != 2 for count in counts):
        names = ", ".join(TYPES[:_SEG_DESC])
        raise LabError(f"{_TYPING} compares with the types {names} {counts} times, not twice with each")
    return found


def _type_loaded(instruction: CsInsn) -> int | None:
    """Return the type of table whose number an instruction loads."""
    if instruction.mnemonic != "movabs" or instruction.operands[1].type != X86_OP_IMM:
        return None
    number, rest = divmod(instruction.operands[1].imm & _ADDRESS, 1 << _TYPE_SHIFT)
    return number - 1 if not rest and 1 <= number <= _SEG_DESC else None


def _compares(constant: CsInsn, compare: CsInsn) -> bool:
    """Whether the second instruction compares what the first one loaded with the wanted type."""
    registers = [operand.reg for operand in compare.operands if operand.type == X86_OP_REG]
    return compare.mnemonic == "cmp" and registers[1:] == [constant.operands[0].reg]
