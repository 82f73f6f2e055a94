# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Claims hold whatever registers and instructions a compiler has chosen, and with no other value.

The controls: each bit of each value; code that computes something else with the same offsets; and passages,
which do not find what another compiler has written. The code is written into a copy of the stock functions,
so that no compiler is needed; test_own_build.py has a hypervisor that is compiled with other options.

What is not seen here: source that says something else and is compiled to what a claim wants, on one way of
many. A claim is about a place and a value, not about a function.
"""

from __future__ import annotations

import struct
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from check_layout import DEFAULT_LAYOUT
from layout_checker import proofs
from layout_checker.claim import Claim, Either
from layout_checker.facts import check_all
from layout_checker.fit import fit
from layout_checker.header import Header, parse_header, read_layout
from layout_checker.hypervisor import Hypervisor
from layout_checker.report import Refused
from layout_checker.witness import Witness
from variants import HEADER, Variant, installed, needs_xen, of_debian12

NEWER = Path(__file__).resolve().parents[3] / "build/pagetable/debian13"
# Of these each build meets one: that of its family. Those of the last were never in a build of Debian's.
OF_A_FAMILY = {"VALID_BY_MASKS", "VALID_WITHOUT_HOLES", "VALID_BY_OFFSETS", "PDX_TO_MFN"}
CLAIMS: dict[str, Claim | Either] = {
    name: claim
    for name, claim in vars(proofs).items()
    if isinstance(claim, Claim | Either) and name[0] != "_" and name not in OF_A_FAMILY
}

pytestmark = [needs_xen, of_debian12]


@cache
def newer() -> tuple[Hypervisor, Header]:
    """Debian 13's Xen, which another compiler has made, and layout.h for it."""
    if not (NEWER / "versions").exists():
        pytest.skip("no Xen of Debian 13: make -C pagetable debian13")
    (image,) = NEWER.glob("boot/xen-*.gz")
    symbols = NEWER / f"usr/lib/debug/boot/{image.stem.replace('xen-', 'xen-syms-', 1)}"
    hypervisor = Hypervisor(image, symbols)
    text = read_layout(DEFAULT_LAYOUT, hypervisor.version)
    return hypervisor, parse_header(fit(text, parse_header(text), hypervisor)[0])


def assembled(text: str, tmp_path: Path, address: int = 0, names: dict[str, int] | None = None) -> bytes:
    """The bytes of instructions in Intel syntax at an address; what they lead to is there, or has a name."""
    source, compiled, flat = (tmp_path / f"code.{suffix}" for suffix in ("s", "o", "bin"))
    source.write_text(f".intel_syntax noprefix\n{text}\n")
    subprocess.run(["as", "-o", compiled, source], check=True)
    known = [f"--defsym={name}={at:#x}" for name, at in (names or {}).items()]
    where = [f"-Ttext={address:#x}", "-e", "0", "--oformat", "binary", "-o", str(flat)]
    subprocess.run(["ld", *known, *where, str(compiled)], check=True)
    return flat.read_bytes()


def rewritten(
    function: str, text: str, tmp_path: Path, names: tuple[str, ...] = (), new: tuple[str, ...] = ()
) -> Variant:
    """The installed hypervisor with another body of a function.

    It uses some of the hypervisor's names, and new ones, which get a place among the hypervisor's variables.
    """
    build = Variant()
    symbol = build.symbol(function)
    for number, name in enumerate(new):
        place = build.symbol("pdx_group_valid").address + 1024 * number
        build.symbols[name] = [replace(build.symbol("max_page"), name=name, address=place)]
    known = {name: build.symbol(name).address for name in (*names, *new)}
    code = assembled(text, tmp_path, symbol.address, known)
    assert len(code) <= symbol.size
    build.poke(symbol.address, code.ljust(symbol.size, b"\x90"))
    return build


# -- the stock builds -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAIMS)
def test_one_claim_serves_what_two_compilers_made(name: str) -> None:
    assert CLAIMS[name].seen(installed(), HEADER.values)
    hypervisor, header = newer()
    assert CLAIMS[name].seen(hypervisor, header.values)


def test_a_build_has_the_frame_table_of_its_family() -> None:
    hypervisor, header = newer()
    assert proofs.VALID_BY_MASKS.seen(installed(), HEADER.values)
    assert proofs.VALID_WITHOUT_HOLES.seen(hypervisor, header.values)
    assert not proofs.VALID_BY_MASKS.seen(hypervisor, header.values)
    assert not proofs.VALID_WITHOUT_HOLES.seen(installed(), HEADER.values)
    assert not any(proofs.VALID_BY_OFFSETS.seen(x, HEADER.values) for x in (hypervisor, installed()))


def test_every_claim_is_asked_for_all_that_it_reads() -> None:
    """Or an item that one claim leaves to another would be refused by none."""
    of_symbols = {proof for known in proofs.SYMBOLS.values() for proof in known.witnesses}
    for name, claim in CLAIMS.items():
        assert claim.items or claim in of_symbols, name
        assert all(claim in proofs.VALUES[item] for item in claim.items), name
        assert all(proof in proofs.VALUES[item] for item, proof in claim.given.items()), name


EACH = pytest.mark.long(
    "each bit of some 30 values of 64 bits: a minute of a processor; make check has a fourth"
)


@pytest.mark.not_fast("a fourth of a minute of a processor")
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=EACH)])
@pytest.mark.parametrize("name", sorted(name for name, claim in CLAIMS.items() if claim.items))
def test_no_other_bit_is_accepted(name: str, step: int) -> None:
    claim = CLAIMS[name]
    for number, item in enumerate(sorted(claim.items)):
        for bit in range(number % step, 64, step):
            changed = {**HEADER.values, item: HEADER.values[item] ^ 1 << bit}
            assert not claim.seen(installed(), changed), f"{item}: bit {bit}"


# -- other code for the same source ---------------------------------------------------------------

# page_unlock as another compiler may write it, and what the passage for it was.
PASSAGE = Witness(
    "page_unlock",
    """
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    ...
    movabs {addend}, {PGT_locked:complement}
    ...
    lea {new}, [{old} + {addend}]
    ...
    lock cmpxchg qword ptr [rdi], {new}
    """,
    """
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    lea {word}, [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    movabs {addend}, {PGT_locked:complement}
    ...
    lea {new}, [{old} + {addend}]
    mov {_}, {old}
    lock cmpxchg qword ptr [{word}], {new}
    """,
)
UNLOCKED = """
    mov r8, 0xf000000000000000
    push rbx
    mov rbx, rdi
    mov rax, [rbx + 16]
1:  lea rcx, [rax + r8 - 1]
    lock cmpxchg [rbx + 16], rcx
    jnz 1b
    pop rbx
    ret
"""


@pytest.mark.parametrize(
    "text",
    [
        UNLOCKED,
        UNLOCKED.replace("lea rcx, [rax + r8 - 1]", "lea rcx, [rax - 1]\n add rcx, r8"),
        UNLOCKED.replace("0xf000000000000000", "0x1000000000000001").replace(
            "lea rcx, [rax + r8 - 1]", "mov rcx, rax\n sub rcx, r8"
        ),
        UNLOCKED.replace("mov rbx, rdi", "lea rbx, [rdi + 8]").replace("[rbx + 16]", "[rbx + 8]"),
    ],
)
def test_other_code_for_the_same_source_is_accepted(text: str, tmp_path: Path) -> None:
    build = rewritten("page_unlock", text, tmp_path)
    assert proofs.UNLOCK.seen(build, HEADER.values)
    assert not PASSAGE.seen(build, HEADER.values), "or the claim would not be needed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0xf000000000000000", "0xe000000000000000"),
        ("[rax + r8 - 1]", "[rax + r8 - 2]"),
        ("lock cmpxchg [rbx + 16]", "lock cmpxchg [rbx + 24]"),
        ("mov rax, [rbx + 16]", "mov rax, [rbx + 24]"),
        ("mov rbx, rdi", "mov rbx, rsi"),
        ("mov rax, [rbx + 16]", "mov eax, [rbx + 16]"),
    ],
)
def test_negative_control_other_source_is_refused(old: str, new: str, tmp_path: Path) -> None:
    """One thing is otherwise: the bit, the count, a field, the page, the width."""
    assert old in UNLOCKED
    build = rewritten("page_unlock", UNLOCKED.replace(old, new), tmp_path)
    assert not proofs.UNLOCK.seen(build, HEADER.values)
    assert {"PGT_locked", "XEN_PAGE_INFO_TYPE_INFO"} & set(check_all(HEADER, build).refused)


def test_the_passage_is_there_in_the_stock_build() -> None:
    """The control of the control."""
    assert PASSAGE.seen(installed(), HEADER.values)


JB_TO_JBE = 4


def flip(build: Variant, function: str, text: str, bits: int = 1) -> None:
    """Turn round the jump behind an instruction, or make it one of another condition."""
    code = build.function(function)
    jump = code[next(n for n, i in enumerate(code) if i.text == text) + 1]
    flipped = bytearray(build.read(jump.address, jump.size))
    flipped[1 if flipped[0] == 0x0F else 0] ^= bits
    build.poke(jump.address, bytes(flipped))


@pytest.mark.parametrize(
    ("function", "text", "claim"),
    [
        ("cleanup_page_mappings", "cmp byte ptr [rax + 0x1c9], 0", proofs.CLEANUP),
        ("cleanup_page_mappings", "test byte ptr [rax + 0x13c], 1", proofs.CLEANUP),
        ("cleanup_page_mappings", "cmp rsi, rax", proofs.WRITABLE),
        ("get_page", "cmp r10, rbp", proofs.GET_PAGE),
        ("get_page_and_type_from_mfn", "test bpl, 1", proofs.PARTIAL),
        ("domain_pause_except_self", "test eax, eax", proofs.OTHERS_PAUSED),
        ("domain_pause_except_self", "test eax, eax", proofs.PAUSE_AGAIN),
        ("domain_pause_except_self", "cmp rbp, rbx", proofs.OTHERS_PAUSED),
        ("domain_pause_except_self", "cmp qword ptr [rbp + 0x10], rdi", proofs.PAUSED),
        ("__mfn_valid", "cmp rdi, qword ptr [max_page]", proofs.VALID_BY_MASKS),
    ],
)
def test_a_decision_that_is_turned_round_is_refused(function: str, text: str, claim: Claim | Either) -> None:
    """The same offsets and masks, and the other branch taken."""
    build = Variant()
    flip(build, function, text)
    assert claim.seen(installed(), HEADER.values) and not claim.seen(build, HEADER.values)


# -- forms that only later builds have ----------------------------------------------------------------

# The frame table from Xen 4.21 on. Registers and order are not those of any build.
TABLES = ("pfn_bases", "pfn_pdx_lookup", "pdx_region_size", "pfn_index_shift")
BY_OFFSETS = """
    mov ecx, [rip + pfn_index_shift]
    mov rsi, rdi
    shr rsi, cl
    and esi, 63
    lea rax, [rip + pfn_bases]
    mov rdx, [rax + rsi * 8]
    cmp rdi, rdx
    jb 2f
    cmp rdi, [rip + max_page]
    jae 2f
    mov rax, rdi
    sub rax, rdx
    cmp rax, [rip + pdx_region_size]
    jae 2f
    lea rdx, [rip + pfn_pdx_lookup]
    sub rdi, [rdx + rsi * 8]
    shr rdi, 16
    bt [rip + pdx_group_valid], edi
    setb al
    jmp __x86_return_thunk
2:  xor eax, eax
    jmp __x86_return_thunk
"""
# No region reaches beyond the last frame number: then "frame - base < size" is "frame < base + size".
MIN_OF_BOTH = BY_OFFSETS.replace(
    """    cmp rdi, [rip + max_page]
    jae 2f
    mov rax, rdi
    sub rax, rdx
    cmp rax, [rip + pdx_region_size]
    jae 2f
""",
    """    add rdx, [rip + pdx_region_size]
    mov rax, [rip + max_page]
    cmp rdx, rax
    cmova rdx, rax
    cmp rdi, rdx
    jae 2f
""",
)
OFFSET_VALUES = {**HEADER.values, "XEN_PDX_TABLE_MASK": 63}


def by_offsets(text: str, tmp_path: Path) -> Variant:
    """The installed hypervisor with a frame table as from 4.21 on."""
    names = ("max_page", "pdx_group_valid", "__x86_return_thunk")
    # Two conditional jumps less than the stock function, and some bytes more.
    return rewritten("__mfn_valid", text, tmp_path, names, TABLES)


def test_the_frame_table_of_later_versions_is_seen(tmp_path: Path) -> None:
    build = by_offsets(MIN_OF_BOTH, tmp_path)
    assert proofs.VALID_BY_OFFSETS.seen(build, OFFSET_VALUES)
    assert proofs.VALID.seen(build, OFFSET_VALUES) and not proofs.VALID_BY_MASKS.seen(build, OFFSET_VALUES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("and esi, 63", "and esi, 31"),
        ("shr rdi, 16", "shr rdi, 17"),
        ("sub rdi, [rdx", "add rdi, [rdx"),
        ("[rip + pfn_pdx_lookup]", "[rip + pfn_bases]"),
        ("cmova rdx, rax", "nop"),
        ("jb 2f", "nop"),
        ("cmp rdi, rdx\n    jb 2f\n", "cmp rdi, rdx\n    jbe 2f\n"),
        ("add rdx, [rip + pdx_region_size]", "add rdx, 4096"),
        ("setb al", "setae al"),
    ],
)
def test_negative_control_another_frame_table_is_not(old: str, new: str, tmp_path: Path) -> None:
    assert old in MIN_OF_BOTH
    build = by_offsets(MIN_OF_BOTH.replace(old, new, 1), tmp_path)
    assert not proofs.VALID_BY_OFFSETS.seen(build, OFFSET_VALUES)


@pytest.mark.parametrize("bit", range(8))
def test_no_other_size_of_its_tables_is_accepted(bit: int, tmp_path: Path) -> None:
    build = by_offsets(MIN_OF_BOTH, tmp_path)
    assert not proofs.VALID_BY_OFFSETS.seen(build, {**OFFSET_VALUES, "XEN_PDX_TABLE_MASK": 63 ^ 1 << bit})


# As from 4.21 on: what is to be copied is copied on the spot, from an address that speculation cannot make
# one of the hypervisor's.
COPIED_HERE = """
    mov rax, 0xffff800000000000
    push rbx
    mov ebx, edx
    mov rdx, 0xffff07ffffffffff
    add rax, rsi
    cmp rdx, rax
    jae 1f
    mov ecx, ebx
    mov rdx, 0xffff87ffffffffff
    mov r8, 47
    cmp rdx, rsi
    cmovae rdx, r8
    xor r8, r8
    btr rsi, rdx
    rcr r8, 1
    or rsi, r8
    rep movsb
    mov eax, ecx
    pop rbx
    jmp __x86_return_thunk
1:  mov edx, ebx
    xor esi, esi
    call memset
    mov eax, ebx
    pop rbx
    jmp __x86_return_thunk
"""


@pytest.mark.parametrize(
    ("old", "new", "copied", "refused"),
    [
        ("", "", True, True),
        ("add rax, rsi", "add rax, rdi", False, False),
        ("jae 1f", "ja 1f", False, False),
        ("xor esi, esi", "mov esi, 1", True, False),
        ("mov eax, ebx", "xor eax, eax", True, False),
        ("mov edx, ebx", "", True, False),
        ("mov ecx, ebx", "mov ecx, edi", False, True),
        ("mov r8, 47", "mov r8, 46", False, True),
        ("rcr r8, 1", "", False, True),
        ("or rsi, r8", "or rsi, rdi", False, True),
        ("rep movsb", "rep movsd", False, True),
    ],
)
def test_what_is_copied_in_place(old: str, new: str, copied: bool, refused: bool, tmp_path: Path) -> None:
    """Who may not read gets nothing, and is told so. The controls: one thing is otherwise."""
    # There is more room in another function: the claim is of the code, not of the name.
    names = ("memset", "__x86_return_thunk")
    build = rewritten("do_callback_op", COPIED_HERE.replace(old, new, 1), tmp_path, names)
    build.symbols["copy_from_guest_pv"] = build.symbols["do_callback_op"]
    assert proofs.COPIED_FROM.seen(build, HEADER.values) is copied
    assert proofs.NOT_COPIED_FROM.seen(build, HEADER.values) is refused


@pytest.mark.parametrize("function", ["copy_from_guest_pv", "copy_to_guest_pv"])
def test_who_copies_is_seen(function: str) -> None:
    """Of a build in which that is a function of its own. The control: another function."""
    build, claim = Variant(), {"copy_from_guest_pv": proofs.COPIED_FROM, "copy_to_guest_pv": proofs.COPIED_TO}
    assert claim[function].seen(build, HEADER.values)
    callee = function.replace("_pv", "_ll")
    jump = next(i for i in build.function(function) if i.text == f"jmp {callee}")
    target = build.symbol("memset").address
    build.poke(jump.address + 1, struct.pack("<i", target - jump.address - jump.size))
    assert not claim[function].seen(build, HEADER.values)


# _domain_pause() in the function itself, as gcc 16 has it.
PAUSED_HERE = f"""
    push rbx
    push rbp
    mov rbp, rdi
    mov rax, rsp
    or rax, 0x7fff
    mov rax, [rax - 0x37]
    cmp [rax + {HEADER.values["XEN_VCPU_DOMAIN"]}], rdi
    je 3f
    lock inc dword ptr [rdi + 0x208]
    mov rbx, [rdi + 8]
    test rbx, rbx
    je 2f
1:  mov rdi, rbx
    call vcpu_sleep_sync
    mov rbx, [rbx + 24]
    test rbx, rbx
    jne 1b
2:  mov rdi, rbp
    call arch_domain_pause
3:  xor eax, eax
    pop rbp
    pop rbx
    jmp __x86_return_thunk
"""


@pytest.mark.parametrize(
    ("old", "new", "held"),
    [
        ("", "", True),
        ("je 3f", "jne 3f", False),
        ("lock inc", "lock dec", False),
        ("lock inc", "inc", False),
        ("[rdi + 0x208]", "[rax + 0x208]", False),
        ("call vcpu_sleep_sync", "nop", False),
        ("mov rdi, rbp\n", "mov rdi, rax\n", False),
        ("or rax, 0x7fff", "or rax, 0x3fff", False),
        ("xor eax, eax", "mov eax, 1", False),
    ],
)
def test_a_domain_that_is_paused_in_place(old: str, new: str, held: bool, tmp_path: Path) -> None:
    names = ("__x86_return_thunk", "memset", "vcpu_sleep_sync")
    text = PAUSED_HERE.replace(old, new, 1).replace("arch_domain_pause", "memset")
    build = rewritten("domain_pause_except_self", text, tmp_path, names)
    build.symbols["arch_domain_pause"] = build.symbols["memset"]
    assert proofs.PAUSED.seen(build, HEADER.values) is held


def test_one_form_is_enough_whatever_another_says() -> None:
    """A function that the compiler has put in place here may be there for others."""
    build = Variant()
    build.symbols["arch_domain_pause"] = build.symbols["memset"]
    assert proofs.PAUSED.seen(build, HEADER.values)
    proofs.PAUSED.demand(build, HEADER.values, "XEN_VCPU_DOMAIN")


def test_negative_control_a_form_that_needs_other_items_excuses_none() -> None:
    """One of the forms has an item that this header has not, which would be to blame."""
    build = Variant()
    flip(build, "__mfn_valid", "cmp rdi, qword ptr [max_page]", JB_TO_JBE)
    for item in ("XEN_PDX_GROUP_SHIFT", "max_page", "__mfn_valid"):
        with pytest.raises(Refused, match="__mfn_valid has no way"):
            proofs.VALID.demand(build, HEADER.values, item)


# A compiler that knows the callee keeps a value in a register that any callee may write.
KEPT_IN_R9 = """
    mov r9, rdi
    call {callee}
    mov rax, [r9 + 16]
    lea rcx, [rax - 1]
    mov r8, 0xf000000000000000
    add rcx, r8
    lock cmpxchg [r9 + 16], rcx
    ret
"""


@pytest.mark.parametrize(
    ("callee", "held"),
    [
        ("lea rax, [rdi + 1]\n ret", True),
        ("lea rax, [rdi + 1]\n jmp __x86_return_thunk", True),
        ("xor r9d, r9d\n ret", False),
        ("mov r9b, 1\n ret", False),
        ("call __x86_return_thunk\n ret", False),
        ("jmp memset", False),
        ("lea rax, [rdi + 1]\n .fill {room}, 1, 0x90", False),
    ],
)
def test_what_a_small_callee_does_not_write_is_kept(callee: str, held: bool, tmp_path: Path) -> None:
    names = ("__x86_return_thunk", "memset", "_xmalloc")
    build = rewritten("page_unlock", KEPT_IN_R9.format(callee="_xmalloc"), tmp_path, names)
    symbol = build.symbol("_xmalloc")
    known = {name: build.symbol(name).address for name in names}
    code = assembled(callee.format(room=symbol.size - 4), tmp_path, symbol.address, known)
    build.poke(symbol.address, code.ljust(symbol.size, b"\xcc"))
    assert proofs.UNLOCK.seen(build, HEADER.values) is held


# -- what is kept between builds --------------------------------------------------------------------


def test_ways_of_the_same_bytes_are_found_once() -> None:
    build = Variant()
    build.poke(build.symbol("page_unlock").address, b"\x06" * 8)
    (kept,), (of_variant,), (poked,) = (
        list(c._ways(b))
        for c, b in ((proofs.PREEMPTION, installed()), (proofs.PREEMPTION, build), (proofs.UNLOCK, build))
    )
    assert kept is of_variant
    assert poked is not next(proofs.UNLOCK._ways(installed()))


def test_a_name_that_is_elsewhere_is_asked_for_anew() -> None:
    """Of a function with the same bytes, whose ways are kept."""
    assert proofs.PREEMPTION.seen(installed(), HEADER.values)
    build = Variant()
    (symbol,) = build.symbols["irq_stat"]
    build.symbols["irq_stat"] = [replace(symbol, address=symbol.address + 64)]
    assert not proofs.PREEMPTION.seen(build, HEADER.values)
    build.symbols["irq_stat"] = [symbol]
    assert proofs.PREEMPTION.seen(build, HEADER.values)


# -- what is not understood -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lea rcx, [rax + r8 - 1]", "lea rcx, [rax + r8 - 1]\n bswap rcx"),
        ("lea rcx, [rax + r8 - 1]", "lea rcx, [rax + r8 - 1]\n xchg rcx, rdx"),
        ("mov rax, [rbx + 16]", "mov rax, gs:[rbx + 16]"),
        ("mov rbx, rdi", "mov rbx, rdi\n push rdi\n call rbx\n pop rdi\n mov rbx, rcx"),
    ],
)
def test_what_is_not_modelled_shows_nothing(old: str, new: str, tmp_path: Path) -> None:
    build = rewritten("page_unlock", UNLOCKED.replace(old, new), tmp_path)
    assert not proofs.UNLOCK.seen(build, HEADER.values)


def test_code_that_is_none_shows_nothing() -> None:
    build = Variant()
    build.poke(build.symbol("page_unlock").address, b"\x06" * 8)
    assert not proofs.UNLOCK.seen(build, HEADER.values)


def test_a_function_that_is_missing_is_refused() -> None:
    build = Variant()
    build.rename("page_unlock", "")
    with pytest.raises(Refused, match="page_unlock 0 times"):
        proofs.UNLOCK.seen(build, HEADER.values)
