# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Claims hold whatever registers and instructions a compiler has chosen, and with no other value.

The controls: each bit of each value; code that computes something else with the same offsets; and passages,
which do not find what another compiler has written. The code is written into a copy of the stock functions,
so that no compiler is needed; test_own_build.py has a hypervisor that is compiled with other options.

What is not seen here: source that says something else and is compiled to what a claim wants, on one way of
many. A claim is about a place and a value, not about a function.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from check_layout import DEFAULT_LAYOUT
from layout_checker import proofs
from layout_checker.claim import Claim
from layout_checker.facts import check_all
from layout_checker.fit import fit
from layout_checker.header import Header, parse_header, read_layout
from layout_checker.hypervisor import Hypervisor
from layout_checker.report import Refused
from layout_checker.witness import Witness
from variants import HEADER, Variant, installed, needs_xen, of_debian12

NEWER = Path(__file__).resolve().parents[3] / "build/pagetable/debian13"
CLAIMS = {name: claim for name, claim in vars(proofs).items() if isinstance(claim, Claim) and name[0] != "_"}

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


def assembled(text: str, tmp_path: Path) -> bytes:
    """The bytes of instructions in Intel syntax; what they jump to is among them."""
    source, compiled, flat = (tmp_path / f"code.{suffix}" for suffix in ("s", "o", "bin"))
    source.write_text(f".intel_syntax noprefix\n{text}\n")
    subprocess.run(["as", "-o", compiled, source], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", compiled, flat], check=True)
    return flat.read_bytes()


def rewritten(function: str, text: str, tmp_path: Path) -> Variant:
    """The installed hypervisor with another body of a function."""
    build = Variant()
    symbol = build.symbol(function)
    code = assembled(text, tmp_path)
    assert len(code) <= symbol.size
    build.poke(symbol.address, code.ljust(symbol.size, b"\x90"))
    return build


# -- the stock builds -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAIMS)
def test_one_claim_serves_what_two_compilers_made(name: str) -> None:
    assert CLAIMS[name].seen(installed(), HEADER.values)
    hypervisor, header = newer()
    assert CLAIMS[name].seen(hypervisor, header.values)


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


@pytest.mark.parametrize(
    ("function", "text", "claim"),
    [
        ("cleanup_page_mappings", "cmp byte ptr [rax + 0x1c9], 0", proofs.CLEANUP),
        ("cleanup_page_mappings", "test byte ptr [rax + 0x13c], 1", proofs.CLEANUP),
        ("cleanup_page_mappings", "cmp rsi, rax", proofs.WRITABLE),
        ("get_page", "cmp r10, rbp", proofs.GET_PAGE),
        ("get_page_and_type_from_mfn", "test bpl, 1", proofs.PARTIAL),
    ],
)
def test_a_decision_that_is_turned_round_is_refused(function: str, text: str, claim: Claim) -> None:
    """The same offsets and masks, and the other branch taken."""
    build = Variant()
    code = build.function(function)
    index = next(n for n, i in enumerate(code) if i.text == text)
    jump = code[index + 1]
    flipped = bytearray(build.read(jump.address, jump.size))
    flipped[1 if flipped[0] == 0x0F else 0] ^= 1
    build.poke(jump.address, bytes(flipped))
    assert claim.seen(installed(), HEADER.values) and not claim.seen(build, HEADER.values)


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
