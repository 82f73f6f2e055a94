# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Parts of the payload that repeat decisions of Xen's: only beside functions that were compared with them.

l1_update.c, plain_runs.c (of the same part), table_refs.c and ranges.c make the checks of stock functions
again. Offsets and passages say where Xen keeps things, not what it decides: a security fix may add a check
that no passage shows, and the payload would then accept what the fixed Xen refuses. So these parts are built
only for a hypervisor in which every function that they repeat, and every one that those lean on, is known to
the byte.

Invariants:

  - Known is what a file of known-functions/ lists. A list is written for a build whose functions were
    compared with these C files, and on which the differential test has run; nothing adds to it by itself.
  - A part is accepted only if all of its functions are those of one and the same list. In case of doubt, such
    as a symbol that is missing or an operand that has no name, it is left out.
  - A digest covers a function's bytes, with each address replaced by the name of what is there, and what the
    hypervisor's alternatives put in their place at boot. So it does not depend on where the linker put
    things, and on nothing that the disassembler prints but operands that are addresses.

Not covered: constants in memory that have a name, and what a function's exceptions lead to.
"""

from __future__ import annotations

import hashlib
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .hypervisor import Hypervisor, Instruction, Symbol
from .report import Refused, UnusableInput

KNOWN = Path(__file__).resolve().parents[1] / "known-functions"
LINE = re.compile(r"([0-9a-f]{64}) (\S+)")
CLONE = r"\.(?:isra|constprop|part)\.\d+"
COLD = ".cold"
ALTERNATIVE = struct.Struct("<iiHBBBB")  # struct alt_instr
LONGEST_STRING = 512
THUNKS = "__x86_"  # returns and indirect branches: they decide nothing, and have no size
# What is called by a function that is repeated, and what that calls in turn.
CALLS_FOLLOWED = 2
NEAR = re.compile(rb"\xe8|\xe9|\x0f[\x80-\x8f]")


@dataclass(frozen=True)
class Repeater:
    """A part of the payload that repeats decisions."""

    name: str
    repeated: tuple[str, ...]
    # Called by the part itself, in the place of the repeated function.
    used: tuple[str, ...]
    # The functions that the part puts itself before.
    replaced: tuple[str, ...]
    # TPT_SWITCH_ of it.
    switch: int
    # Functions of the part that other parts of the payload call.
    called: tuple[str, ...] = ()
    # What sets, at boot, what the repeated functions decide by.
    prepared_by: tuple[str, ...] = ("arch_init_memory",)


# What l1_update.c and ranges.c repeat of an update of one entry, and what both call.
_ENTRY = (
    *("do_mmu_update", "mod_l1_entry", "get_page_from_l1e", "put_page_from_l1e"),
    *("_put_page_type", "_get_page_type", "__mfn_valid", "get_page"),
)
_TABLE = (
    *("copy_from_guest_pv", "map_domain_page", "page_lock_unsafe", "page_unlock"),
    *("put_page", "put_page_type", "unmap_domain_page"),
)

PARTS = (
    Repeater(
        "l1_update",
        ("do_update_va_mapping", "__do_update_va_mapping", "devalidate_page", *_ENTRY),
        ("get_page_type", "map_guest_l1e", "paging_invlpg", *_TABLE),
        replaced=("do_mmu_update", "do_update_va_mapping", "get_page_from_l1e", "put_page_from_l1e"),
        switch=2,
        called=("plain_run_take", "plain_run_drop"),
    ),
    Repeater(
        "table_refs",
        ("get_page_from_l4e", "put_pt_page", "_get_page_type", "_put_page_type", "__mfn_valid", "get_page"),
        ("put_page",),
        replaced=("get_page_from_l4e", "put_pt_page"),
        switch=4,
    ),
    Repeater("ranges", _ENTRY, _TABLE, replaced=(), switch=8, called=("ranges_call",)),
)

ALWAYS = 1  # zero_runs, whose loops are proven one by one

# A symbol that only a build with this option has: code that these C files were never compared with.
OPTIONS = {
    "CONFIG_PV32": ("opt_pv32", "switch_compat"),
    "CONFIG_XSM": ("xsm_ops", "xsm_multiboot_init", "flask_init"),
    "CONFIG_SHADOW_PAGING": ("shadow_enable", "shadow_one_bit_enable", "sh_remove_all_mappings"),
}


@dataclass(frozen=True)
class Change:
    """What the hypervisor puts in the place of some instructions at boot."""

    offset: int  # in the function
    feature: int  # of the processor
    sizes: tuple[int, int, int]  # of what is replaced, of the replacement, of padding
    replacement: int


@dataclass(frozen=True)
class Known:
    """The functions of one known build."""

    name: str
    lines: frozenset[str]


def read_known(folder: Path = KNOWN) -> list[Known]:
    """Every list of known functions."""
    found = []
    for path in sorted(folder.glob("*.txt")):
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise UnusableInput(f"{path}: {error}") from error
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        for line in lines:
            if not LINE.fullmatch(line):
                raise UnusableInput(f"{path}: cannot be read: {line}")
        found.append(Known(path.stem, frozenset(lines)))
    return found


def left_out(hypervisor: Hypervisor, known: list[Known]) -> dict[str, str]:
    """Each part that must not be built for this hypervisor, and why."""
    reasons: dict[str, str] = {}
    for part in PARTS:
        try:
            options(hypervisor)
            demand_known(part, hypervisor.described, known)
        except Refused as refusal:
            reasons[part.name] = str(refusal)
    return reasons


def parts_header(missing: dict[str, str]) -> str:
    """parts.h: which parts the payload has, for its C files."""
    bits = ALWAYS | sum(part.switch for part in PARTS if part.name not in missing)
    return (
        "/* SPDX-License-Identifier: GPL-2.0-only */\n"
        "/* Written by check_layout.py: the parts that are proven for this build of Xen. */\n"
        f"#define PAYLOAD_PARTS\t{bits:#x}\n"
    )


def lists(hypervisor: Hypervisor) -> list[str]:
    """What a file of known-functions/ has for this build."""
    here = hypervisor.described
    return sorted({line for part in PARTS for line in lines(part, here)}, key=lambda line: line[65:])


def options(hypervisor: Hypervisor) -> None:
    """Refuse a hypervisor that was built with an option whose code was never looked at."""
    for option, symbols in OPTIONS.items():
        for symbol in symbols:
            if symbol in hypervisor.symbols:
                raise Refused(
                    f"this Xen was built with {option} (it has {symbol}), which the part does not know"
                )


def demand_known(part: Repeater, hypervisor: Hypervisor, known: list[Known]) -> None:
    """Refuse unless all functions of a part are those of one known build."""
    here = lines(part, hypervisor)
    if any(here <= build.lines for build in known):
        return
    if not known:
        raise Refused("no build is known")
    nearest = min(known, key=lambda build: len(here - build.lines))
    others = sorted(line.partition(" ")[2] for line in here - nearest.lines)
    shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    raise Refused(
        f"{len(others)} of its {len(here)} functions are not as in any build that is known "
        f"(nearest: {nearest.name}): {shown}"
    )


def lines(part: Repeater, hypervisor: Hypervisor) -> set[str]:
    """The lines of a list that a part needs: digest and name of each of its functions."""
    found: set[str] = set()
    followed: dict[int, int] = {}
    changes = alternatives(hypervisor)
    todo = [(place(hypervisor, name), CALLS_FOLLOWED) for name in (*part.repeated, *part.used)]
    todo += [(place(hypervisor, name), 0) for name in part.prepared_by]
    while todo:
        function, more = todo.pop()
        if followed.get(function.address, -1) >= more:
            continue
        followed[function.address] = more
        digest, leads_to = described(hypervisor, function, changes.get(function.address, ()))
        found.add(f"{digest} {function.xen_name}")
        for target in leads_to:
            callee = hypervisor.symbol_at(target)
            # The cold part of a function is the function.
            left = more if callee and callee.name == function.name + COLD else more - 1
            if callee and callee.name.startswith(THUNKS):
                continue
            if left >= 0:
                todo.append((function_with(target, callee), left))
    return found


def place(hypervisor: Hypervisor, name: str) -> Symbol:
    """A function, or the compiler's only clone of it."""
    if name not in hypervisor.symbols:
        clone = re.compile(re.escape(name) + CLONE)
        clones = [
            symbol for symbol in hypervisor.symbols if symbol.startswith(name) and clone.fullmatch(symbol)
        ]
        if len(clones) == 1:
            name = clones[0]
    symbol = hypervisor.symbol(name)
    if symbol.kind != "function" or not symbol.size:
        raise Refused(f"{name} is not a function with a size")
    return symbol


def function_with(address: int, symbol: Symbol | None) -> Symbol:
    """The symbol that an address is in, if it is a function."""
    if symbol is None or symbol.kind != "function" or not symbol.size:
        raise Refused(f"{address:#x} is in no function")
    return symbol


def described(
    hypervisor: Hypervisor, function: Symbol, changes: tuple[Change, ...]
) -> tuple[str, tuple[int, ...]]:
    """Digest of a function, and the addresses outside of it that it calls or jumps to."""
    made_of = (
        hypervisor.read(function.address, function.size),
        *((change, hypervisor.read(change.replacement, change.sizes[1])) for change in changes),
    )
    kept = hypervisor.digests.get(function.address)
    if kept and kept[0] == made_of:
        return cast(tuple[str, tuple[int, ...]], kept[1])
    digest = hashlib.sha256()
    leads_to: list[int] = []
    body = range(function.address, function.address + function.size)
    for instruction in hypervisor.disassemble(function.address, function.size):
        update(digest.update, hypervisor, body, instruction, leads_to)
    for change in changes:
        digest.update(f"alternative {change.offset} {change.feature} {change.sizes}\n".encode())
        # It is copied there, and a call in it is made relative to its new place.
        body = range(change.replacement, change.replacement + change.sizes[1])
        for instruction in hypervisor.disassemble(change.replacement, change.sizes[1]):
            update(digest.update, hypervisor, body, instruction, leads_to)
    result = digest.hexdigest(), tuple(leads_to)
    hypervisor.digests[function.address] = made_of, result
    return result


def update(
    add: Callable[[bytes], None],
    hypervisor: Hypervisor,
    body: range,
    instruction: Instruction,
    leads_to: list[int],
) -> None:
    """Add an instruction: its bytes, those of an address outside the body replaced by a name."""
    code = hypervisor.read(instruction.address, instruction.size)
    end = instruction.address + instruction.size
    for start, size, address in addresses(code, end, instruction, hypervisor):
        if address in body:
            continue
        add(code[:start] + bytes(size) + code[start + size :])
        add(f" {named(hypervisor, address)}\n".encode())
        if instruction.target == address:
            leads_to.append(address)
        return
    add(code)


def addresses(
    code: bytes, end: int, instruction: Instruction, hypervisor: Hypervisor
) -> Iterator[tuple[int, int, int]]:
    """(place in the instruction, size, address) of what depends on where things are."""
    if instruction.target is not None:
        near = NEAR.match(code)
        if near and near.end() + 4 == len(code):
            yield near.end(), 4, instruction.target
        return
    relative = re.search(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]", instruction.operands)
    if relative:
        offset = int(relative[2], 0) * (1 if relative[1] == "+" else -1)
        wanted = offset.to_bytes(4, "little", signed=True)
        # Behind it stands an immediate of the instruction, or nothing.
        places = [len(code) - 4 - more for more in (0, 1, 2, 4) if code[-4 - more :][:4] == wanted]
        if len(places) != 1:
            raise Refused(
                f"{instruction.text} at {instruction.address:#x}: its address is not found in its bytes"
            )
        yield places[0], 4, end + offset
    elif instruction.mnemonic == "movabs":
        value = int.from_bytes(code[-8:], "little")
        if hypervisor.base <= value < hypervisor.base + len(hypervisor.image.flat):
            yield len(code) - 8, 8, value


def named(hypervisor: Hypervisor, address: int) -> str:
    """What is at an address, by a name that does not depend on the linker."""
    symbol = hypervisor.symbol_at(address)
    if symbol is not None:
        return f"{symbol.name}+{address - symbol.address:#x}"
    string = hypervisor.read(address, LONGEST_STRING).partition(b"\0")[0]
    if not string or not all(byte in b"\t\n\r\x1b" or 32 <= byte < 127 for byte in string):
        raise Refused(f"what is at {address:#x} has no name")
    return repr(string)


def alternatives(hypervisor: Hypervisor) -> dict[int, tuple[Change, ...]]:
    """For each function: where its code is replaced at boot, on which feature, by what."""
    first, last = (hypervisor.symbol(f"__alt_instructions{end}").address for end in ("", "_end"))
    table = hypervisor.read(first, last - first)
    kept = hypervisor.digests.get(first)
    if kept and kept[0] == table:
        return cast(dict[int, tuple[Change, ...]], kept[1])
    if len(table) % ALTERNATIVE.size:
        raise Refused("the table of alternatives is not some entries of known size")
    starts = hypervisor.function_starts
    found: dict[int, list[Change]] = {}
    for index, entry in enumerate(ALTERNATIVE.iter_unpack(table)):
        at = first + index * ALTERNATIVE.size
        original, replacement = at + entry[0], at + 4 + entry[1]
        start = starts[bisect_right(starts, original) - 1]
        found.setdefault(start, []).append(Change(original - start, entry[2], entry[3:6], replacement))
    result = {start: tuple(changes) for start, changes in found.items()}
    hypervisor.digests[first] = table, result
    return result
