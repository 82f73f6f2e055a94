# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks of layout.h, and of what the payload assumes beyond it, against the hypervisor."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import capstone
from capstone import x86

from . import proofs
from .clobbers import demand_nothing_kept
from .header import Header
from .hypervisor import Hypervisor, Instruction
from .report import Refused, Report

JUMP_SIZE = 5
LANDING_PADS = (
    bytes.fromhex("f30f1efa"),  # endbr64
    bytes.fromhex("660f1f00"),  # what Xen makes of one that nothing calls
    bytes.fromhex("660f1f01"),
)
# The items that move with a rebuild of Xen (fit.py).
MOVES = re.compile(r"XEN_(?:DOMAIN|VCPU)_(?!OPTION_)\w+")
WIDTHS = {"byte": 1, "word": 2, "dword": 4, "qword": 8}
READS = {"cmp", "test", "bt"}
NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")
BRANCHES = {x86.X86_GRP_JUMP, x86.X86_GRP_CALL, x86.X86_GRP_RET, x86.X86_GRP_INT}


def check_all(header: Header, hypervisor: Hypervisor) -> Report:
    """A verdict for every item of the header and every one it should have."""
    report = Report()

    def check(item: str, proof: Callable[[], None]) -> None:
        try:
            proof()
        except Refused as refusal:
            report.refuse(item, str(refusal))
        else:
            report.accept(item)

    check("build-id", lambda: same_build(hypervisor))
    for name in hypervisor.compared:
        check(f"image {name}", lambda name=name: same_bytes(hypervisor, name))  # type: ignore[misc]
    for item, why in header.problems:
        report.refuse(item, why)
    for name in header.replaced:
        check(f"XEN_SIZE_{name}", lambda name=name: function_size(header, hypervisor, name))  # type: ignore[misc]
        check(f"XEN_PROLOGUE_{name}", lambda name=name: prologue(header, hypervisor, name))  # type: ignore[misc]
    for name in sorted(header.values.keys() | proofs.VALUES.keys() - proofs.FAMILY_VALUES):
        check(name, lambda name=name: value(header, hypervisor, name))  # type: ignore[misc]
    for name in sorted(header.structs.keys() | {"page_info"}):
        check(f"struct {name}", lambda name=name: struct(header, name))  # type: ignore[misc]
    for name in sorted(header.declarations.keys() | proofs.SYMBOLS.keys() - proofs.FAMILY_SYMBOLS):
        check(name, lambda name=name: declaration(header, hypervisor, name))  # type: ignore[misc]
    check("assumption: pdx", lambda: pdx(header, hypervisor))
    check("assumption: validated-last", lambda: validated_last(header, hypervisor))
    check("assumption: iommu-callers", lambda: iommu_callers(hypervisor))
    check("assumption: death", lambda: death(hypervisor))
    check("assumption: clobbers", lambda: demand_nothing_kept(header, hypervisor))
    check("assumption: livepatch-func", lambda: livepatch_func(hypervisor))
    return report


def same_build(hypervisor: Hypervisor) -> None:
    """Both files are of one build."""
    hypervisor.demand_one_build()


def same_bytes(hypervisor: Hypervisor, name: str) -> None:
    """A section has the same contents in both files."""
    for section in hypervisor.sections:
        if section.name != name:
            continue
        shipped = hypervisor.read(section.address, len(section.data))
        if shipped != section.data:
            pairs = zip(shipped, section.data, strict=True)
            first = next(index for index, (a, b) in enumerate(pairs) if a != b)
            raise Refused(f"the two files differ at {section.address + first:#x}")


def function_size(header: Header, hypervisor: Hypervisor, name: str) -> None:
    """A replaced function is as long as the header says."""
    if name not in header.sizes:
        raise Refused("is missing")
    symbol = hypervisor.symbol(name)
    if symbol.size != header.sizes[name]:
        raise Refused(f"{name} has {symbol.size} bytes, not {header.sizes[name]}")


def prologue(header: Header, hypervisor: Hypervisor, name: str) -> None:
    """The overwritten bytes: what they are, that they can move, that nothing enters them."""
    if name not in header.prologues:
        raise Refused("is missing")
    symbol = hypervisor.symbol(name)
    if symbol.kind != "function":
        raise Refused(f"{name} is not a function")
    expected = header.prologues[name]
    if not JUMP_SIZE <= len(expected) <= min(31, symbol.size):
        raise Refused(f"has {len(expected)} bytes: {JUMP_SIZE} to 31, and no more than {name}")
    found = hypervisor.read(symbol.address, len(expected))
    if found != expected:
        raise Refused(f"{name} begins with {found.hex(' ')}, not {expected.hex(' ')}")
    if expected.startswith(LANDING_PADS):
        raise Refused("begins with a landing pad: Xen would write its jump behind that")
    movable(expected, symbol.address)
    not_entered(hypervisor, symbol.address + 1, symbol.address + len(expected) - 1)


def not_entered(hypervisor: Hypervisor, first: int, last: int) -> None:
    """Nothing in the hypervisor leads to one of these addresses, but what runs into them."""
    short = (
        (branch.address, branch.target)
        for branch in hypervisor.short_branches_near(first)
        if branch.target is not None and first <= branch.target <= last
    )
    for origin, target in itertools.chain(hypervisor.branches_into(first, last), short):
        raise Refused(f"a jump at {origin:#x} leads into it, to {target:#x}")
    for pointer in hypervisor.pointers_into(first, last):
        raise Refused(f"data at {pointer:#x} points into it")


def movable(code: bytes, address: int) -> None:
    """Whole instructions, each touched by the jump, that mean the same anywhere."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    size = 0
    last_start = 0
    for instruction in disassembler.disasm(code, address):
        if BRANCHES & set(instruction.groups):
            raise Refused(f"contains a branch: {instruction.mnemonic} {instruction.op_str}")
        if any(
            operand.type == x86.X86_OP_MEM and operand.mem.base == x86.X86_REG_RIP
            for operand in instruction.operands
        ):
            raise Refused(f"depends on its place: {instruction.mnemonic} {instruction.op_str}")
        last_start = size
        size += instruction.size
    if size != len(code):
        raise Refused("is not a whole number of instructions")
    if last_start >= JUMP_SIZE:
        raise Refused(f"has an instruction behind the {JUMP_SIZE} bytes that are overwritten")


def value(header: Header, hypervisor: Hypervisor, name: str) -> None:
    """A number of the header is seen in the code."""
    if name not in proofs.VALUES:
        raise Refused("unknown item: nothing proves it")
    if name not in header.values:
        raise Refused("is missing")
    # Of a passage in several forms, only what each form shows is compared.
    if not any(name in witness.items for witness in proofs.VALUES[name]):
        raise Refused("no passage shows its value")
    stated = hypervisor.stated.get(name)
    if not stated:
        demand_shown(header, hypervisor, name)
        return
    try:
        demand_shown(header, hypervisor, name)
    except Refused as refusal:
        in_code = ", ".join(map(hex, sorted(shown(hypervisor, header, name)))) or "nothing that is known"
        raise Refused(
            f"{refusal}: the code shows {in_code}, the debugging information has {stated.value:#x} "
            f"for {stated.what}"
        ) from None
    if stated.value != header.values[name]:
        raise Refused(
            f"the code shows {header.values[name]:#x}, the debugging information has {stated.value:#x} "
            f"for {stated.what}"
        )


def demand_shown(header: Header, hypervisor: Hypervisor, name: str) -> None:
    """Each passage of an item shows the header's value."""
    for witness in proofs.VALUES[name]:
        witness.demand(hypervisor, header.values, name)


def shown(hypervisor: Hypervisor, header: Header, name: str) -> set[int]:
    """The values of an item that all of its witnesses show; of others that may move nothing is presumed."""
    others = {item: value for item, value in header.values.items() if not MOVES.fullmatch(item)}
    try:
        return set.intersection(
            *(witness.values_of(hypervisor, name, others) for witness in proofs.VALUES[name])
        )
    except Refused:
        return set()


def struct(header: Header, name: str) -> None:
    """A struct puts its fields where the proven offsets are."""
    if name != "page_info":
        raise Refused("unknown item: nothing proves its layout")
    for field, item in proofs.PAGE_INFO_FIELDS.items():
        offset = header.structs.get(name, {}).get(field)
        if offset is None or offset != header.values.get(item):
            raise Refused(f"{field or 'its size'} is at {offset}, not at {item}")


def declaration(header: Header, hypervisor: Hypervisor, name: str) -> None:
    """A symbol is there once, global, of its kind, declared and used as known."""
    known = proofs.SYMBOLS.get(name)
    if not known:
        raise Refused("unknown item: nothing proves it")
    if name not in header.declarations:
        raise Refused("is missing")
    if header.declarations[name] != known.declaration:
        raise Refused(f"is proven as '{known.declaration}' only")
    symbol = hypervisor.symbol(name)
    kind = "function" if known.size is None else "variable"
    if symbol.kind != kind or symbol.binding != "global":
        raise Refused(f"the symbol is {symbol.binding} {symbol.kind}, not a global {kind}")
    if known.size is not None and symbol.size != known.size:
        raise Refused(f"the variable has {symbol.size} bytes, not {known.size}")
    for witness in known.witnesses:
        witness.demand(hypervisor, header.values, name)


def iommu_callers(hypervisor: Hypervisor) -> None:
    """Only known callers reach the two functions that change a device mapping."""
    only_called_by(hypervisor, {"iommu_legacy_map", "iommu_legacy_unmap"}, proofs.IOMMU_CALLERS)


def pdx(header: Header, hypervisor: Hypervisor) -> None:
    """Xen finds a frame's entry in the frame table as the header's family says."""
    for symbols, claim in proofs.PDX.items():
        if symbols == header.declarations.keys() & proofs.FAMILY_SYMBOLS:
            claim.demand(hypervisor, header.values, "pdx")
            return
    raise Refused("the header declares some of the symbols of a family, and not all")


def death(hypervisor: Hypervisor) -> None:
    """domain_kill gives 0 for the dead only, and is called again after -ERESTART."""
    for witness in proofs.DEATH:
        witness.demand(hypervisor, {}, "domain_kill")
    only_called_by(hypervisor, {"domain_kill"}, proofs.DEATH_CALLERS)


def only_called_by(hypervisor: Hypervisor, functions: set[str], known: set[str]) -> None:
    """No other code branches to these functions, and no data points to them."""
    targets = {hypervisor.symbol(name).address for name in functions}
    callers = {
        hypervisor.function_at(origin)
        for target in targets
        for origin, _ in hypervisor.branches_into(target, target)
    }
    for name in sorted(callers - known):
        raise Refused(f"{name} calls {' or '.join(sorted(functions))} too")
    for target in sorted(targets):
        for pointer in hypervisor.pointers_into(target, target):
            raise Refused(f"data at {pointer:#x} points to {hypervisor.function_at(target)}")


def livepatch_func(hypervisor: Hypervisor) -> None:
    """Xen walks entries of 104 bytes with the old address at 0x10."""
    proofs.FUNC_ENTRY.demand(hypervisor, {}, "livepatch_func")


def validated_last(header: Header, hypervisor: Hypervisor) -> None:
    """In _get_page_type the IOMMU is done with a page before the page is validated.

    Over every path of the function's control flow graph:

     1. a call to iommu_legacy_map/unmap comes after the store of the new type;
     2. it comes only on the branch on which that store did not carry PGT_validated;
     3. it never comes after the store that sets PGT_validated;
     4. no other store to the type word can set that bit.

    Not covered: stores through another register than the one the new type is stored through, and
    that other CPUs leave a page alone while it is not validated.
    """
    code = hypervisor.function("_get_page_type")
    for needed in ("PGT_validated", "XEN_PAGE_INFO_TYPE_INFO"):
        if needed not in header.values:
            raise Refused(f"{needed} is missing")
    flag = header.values["PGT_validated"]
    offset = header.values["XEN_PAGE_INFO_TYPE_INFO"]
    graph = flow(code)
    calls = {i.address for i in code if i.text in ("call iommu_legacy_map", "call iommu_legacy_unmap")}
    if not calls:
        raise Refused("_get_page_type calls neither iommu_legacy_map nor iommu_legacy_unmap")
    exchange = type_exchange(code, offset)
    base, new = (
        code[exchange].operands.split("[")[1].split()[0],
        code[exchange].operands.split()[-1],
    )
    stores = validating_stores(code, base, offset, flag, code[exchange].address)
    entry = code[0].address
    if not stores:
        raise Refused("_get_page_type has no store that sets PGT_validated")
    if calls & reachable(graph, entry, without=code[exchange].address):
        raise Refused("1: a call may come before the store of the new type")
    tests = [
        index
        for index, i in enumerate(code)
        if i.text == f"bt {new}, {flag.bit_length() - 1:#x}" and exchange < index < exchange + 8
    ]
    if not tests or code[tests[0] + 1].mnemonic != "jae":
        raise Refused("2: the new type is not tested for PGT_validated after it is stored")
    for between in code[exchange + 1 : tests[0]]:
        if re.match(rf"{new}\b", between.operands):
            raise Refused(f"2: {between.text} changes the value that is tested")
    pruned = dict(graph)
    pruned[code[tests[0] + 1].address] = {code[tests[0] + 2].address}
    if calls & reachable(pruned, entry):
        raise Refused("2: a call may come although the new type carries PGT_validated")
    for store in stores:
        if calls & reachable(graph, store):
            raise Refused(f"3: a call may come after PGT_validated is set at {store:#x}")


def type_exchange(code: list[Instruction], offset: int) -> int:
    """Index of the one instruction that exchanges the type word for a new one."""
    word = re.compile(rf"qword ptr \[\w+ \+ {offset:#x}\], \w+")
    found = [
        index
        for index, instruction in enumerate(code)
        if instruction.mnemonic == "cmpxchg" and word.fullmatch(instruction.operands)
    ]
    if len(found) != 1:
        raise Refused(f"_get_page_type exchanges the type word {len(found)} times, not once")
    return found[0]


def validating_stores(code: list[Instruction], base: str, offset: int, flag: int, exchange: int) -> set[int]:
    """Stores that set PGT_validated; refuse one where that is unknown."""
    destination = re.compile(rf"(byte|word|dword|qword) ptr \[{base} \+ (0x[0-9a-f]+|\d+)\](.*)")
    number = flag.bit_length() - 1
    stores = set()
    for index, instruction in enumerate(code):
        written = destination.match(instruction.operands)
        if not written or instruction.address == exchange:
            continue
        start, width = int(written[2], 0), WIDTHS[written[1]]
        if start >= offset + 8 or start + width <= offset or instruction.mnemonic in READS:
            continue
        source = written[3].removeprefix(", ")
        before = [i.text for i in code[max(0, index - 3) : index]]
        ored = [f"movabs {source}, {flag:#x}", f"or {source}, qword ptr [{base} + {offset:#x}]"]
        whole = start == offset and width == 8
        set_bit = int(source, 0) if instruction.mnemonic == "bts" and NUMBER.fullmatch(source) else None
        if whole and (set_bit == number or (instruction.mnemonic == "mov" and before[:2] == ored)):
            stores.add(instruction.address)
        elif not (
            (whole and (instruction.mnemonic in ("btr", "and") or set_bit is not None))
            or (instruction.text.startswith("mov ") and whole and source == "0")
        ):
            raise Refused(f"4: {instruction.text} at {instruction.address:#x} may set PGT_validated")
    return stores


def flow(code: list[Instruction]) -> dict[int, set[int]]:
    """Successors of each instruction inside the function."""
    inside = {i.address for i in code}
    graph: dict[int, set[int]] = {}
    for instruction in code:
        following = set()
        if instruction.mnemonic not in ("jmp", "ret", "ud2"):
            following.add(instruction.address + instruction.size)
        if instruction.mnemonic.startswith("j"):
            if instruction.target is None:
                raise Refused(f"an indirect jump at {instruction.address:#x}")
            following.add(instruction.target)
        graph[instruction.address] = following & inside
    return graph


def reachable(graph: dict[int, set[int]], start: int, without: int | None = None) -> set[int]:
    """Instructions that a path from start leads to, start itself excluded unless in a loop."""
    seen: set[int] = set()
    todo = [start]
    while todo:
        address = todo.pop()
        if address == without:
            continue
        todo += graph.get(address, set()) - seen
        seen |= graph.get(address, set())
    return seen
