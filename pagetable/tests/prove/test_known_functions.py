# SPDX-License-Identifier: Apache-2.0 OR MIT
"""l1_update, table_refs and ranges are built only beside functions that are known to the byte.

The sweep changes what the hypervisor decides, one place at a time, and counts the changes with which a part
that repeats the decision would still be built. Offsets alone accept nearly all of them: that is the control.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS, main  # noqa: E402
from layout_checker import known_functions as known  # noqa: E402
from layout_checker.efi import EfiHypervisor  # noqa: E402
from layout_checker.facts import check_all  # noqa: E402
from layout_checker.fit import fit  # noqa: E402
from layout_checker.header import parse_header  # noqa: E402
from layout_checker.hypervisor import Instruction  # noqa: E402
from layout_checker.loops import read_loops  # noqa: E402
from layout_checker.payload import check_payload  # noqa: E402
from layout_checker.report import Report, UnusableInput  # noqa: E402
from variants import HEADER, LAYOUT_TEXT, Variant, installed  # noqa: E402

EFI = DEFAULT_IMAGE.with_suffix(".efi")
NEWER = Path(__file__).resolve().parents[3] / "build/pagetable/debian13"
KNOWN = known.read_known() if known.KNOWN.exists() else []
PARTS = {part.name: part for part in known.PARTS}

pytestmark = pytest.mark.skipif(
    not (DEFAULT_IMAGE.exists() and DEFAULT_SYMBOLS.exists()),
    reason="Debian's Xen and its -dbg package are not installed",
)


class Changed(Variant):
    """The installed hypervisor with other bytes in one place, laid over it: nothing is copied or searched."""

    def __init__(self, address: int, data: bytes) -> None:
        self.__dict__.update(installed().__dict__)
        self.start, self.data = address, data

    def read(self, address: int, size: int) -> bytes:
        found = super().read(address, size)
        first, last = max(address, self.start), min(address + size, self.start + len(self.data))
        if first >= last:
            return found
        return (
            found[: first - address]
            + self.data[first - self.start : last - self.start]
            + found[last - address :]
        )


def functions() -> dict[str, set[str]]:
    """Return each function that is repeated or leaned on, and the parts that do; not what it calls."""
    found: dict[str, set[str]] = {}
    for part in known.PARTS:
        for name in (*part.repeated, *part.used, *part.prepared_by):
            found.setdefault(known.place(installed(), name).name, set()).add(part.name)
    return found


def code_of(name: str) -> list[Instruction]:
    function = installed().symbols[name][0]
    return installed().disassemble(function.address, function.size)


def conditional_jumps(name: str) -> list[Instruction]:
    return [i for i in code_of(name) if i.mnemonic.startswith("j") and i.mnemonic not in ("jmp", "jrcxz")]


def flipped(jump: Instruction) -> tuple[int, bytes]:
    """Where and what to write for the opposite condition: the last bit of the opcode."""
    code = bytearray(installed().read(jump.address, jump.size))
    code[1 if code[0] == 0x0F else 0] ^= 1
    return jump.address, bytes(code)


# -- the installed build ------------------------------------------------------------------------


def test_both_images_of_the_installed_build_are_known() -> None:
    assert not known.left_out(installed(), KNOWN)
    if EFI.exists():
        assert not known.left_out(EfiHypervisor(EFI, DEFAULT_SYMBOLS), KNOWN)


def test_a_list_has_what_its_build_shows() -> None:
    assert any(set(known.lists(installed())) == build.lines for build in KNOWN)


@pytest.mark.parametrize("name", PARTS)
def test_what_is_called_is_known_too(name: str) -> None:
    """What a decision is left to is in the list: typing, references, and what those call."""
    names = {line.partition(" ")[2].rpartition("#")[2] for line in known.lines(PARTS[name], installed())}
    assert {"_get_page_type", "_put_page_type", "get_page_and_type_from_mfn", "arch_init_memory"} <= names
    assert {"devalidate_page", "get_page_light", "cleanup_page_mappings"} <= names


# -- the sweep ----------------------------------------------------------------------------------


def test_no_flipped_jump_is_accepted() -> None:
    """Each conditional jump of each function that a part repeats or uses, one at a time."""
    accepted, tried = [], 0
    for name, parts in functions().items():
        for jump in conditional_jumps(name):
            tried += 1
            if not parts <= known.left_out(Changed(*flipped(jump)), KNOWN).keys():
                accepted.append(f"{name}: {jump.text}")
    print(f"{tried} jumps flipped, {len(accepted)} accepted")
    assert tried > 300 and not accepted


@pytest.mark.parametrize("name", PARTS)
def test_a_flipped_jump_of_what_is_called_in_turn_is_not_accepted(name: str) -> None:
    """One jump of every other function of the list."""
    tried = 0
    for line in sorted(known.lines(PARTS[name], installed())):
        symbol = line.partition(" ")[2].rpartition("#")[2]
        if len(installed().symbols[symbol]) == 1:
            for jump in conditional_jumps(symbol)[:1]:
                tried += 1
                assert name in known.left_out(Changed(*flipped(jump)), KNOWN), symbol
    assert tried > 40


def test_no_other_mask_of_disallowed_bits_is_accepted() -> None:
    """Each bit of each immediate near the mask: where it is made at boot, and where it is used."""
    accepted, tried = [], 0
    for name, parts in functions().items():
        code = code_of(name)
        for index, instruction in enumerate(code):
            near = "".join(i.text for i in code[max(0, index - 12) : index + 12])
            immediate = re.search(r", (0x[0-9a-f]+)$", instruction.text)
            if "base_disallow_mask" not in near or not immediate or "[" in instruction.text:
                continue
            value = int(immediate[1], 16)
            end = instruction.address + instruction.size
            size = 8 if instruction.mnemonic == "movabs" else 4 if value > 127 else 1
            value &= (1 << 8 * size) - 1  # what is shorter in the code is printed with its sign
            if installed().read(end - size, size) != value.to_bytes(size, "little"):
                continue
            for bit in range(8 * size):
                tried += 1
                build = Changed(end - size, (value ^ 1 << bit).to_bytes(size, "little"))
                if not parts <= known.left_out(build, KNOWN).keys():
                    accepted.append(f"{name}: {instruction.text}, bit {bit}")
    print(f"{tried} bits of immediates changed, {len(accepted)} accepted")
    assert tried >= 64 and not accepted


@pytest.mark.long("the same sweep over Debian 13's Xen: half a minute; the checker is the same")
def test_none_is_accepted_of_debian_13s_xen() -> None:
    if not (NEWER / "versions").exists():
        pytest.skip("no Xen of Debian 13: make -C pagetable debian13")
    (image,) = NEWER.glob("boot/xen-*.gz")
    symbols = NEWER / f"usr/lib/debug/boot/{image.stem.replace('xen-', 'xen-syms-', 1)}"
    sweep = (
        "import check_layout, pathlib",
        f"check_layout.DEFAULT_IMAGE = pathlib.Path({str(image)!r})",
        f"check_layout.DEFAULT_SYMBOLS = pathlib.Path({str(symbols)!r})",
        "import test_known_functions as t",
        "t.test_a_list_has_what_its_build_shows()",
        "t.test_no_flipped_jump_is_accepted()",
        "t.test_no_other_mask_of_disallowed_bits_is_accepted()",
    )
    path = os.pathsep.join((str(XEN_DIR / "prove"), str(Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(sweep)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(", 0 accepted") == 2


def test_a_stricter_mask_is_not_made_lax_again() -> None:
    """Bit 10 of an entry disallowed, as a security fix could: what would still allow it is left out."""
    made = next(i for i in code_of("arch_init_memory") if i.text == "sub eax, 0xfffe68")
    build = Changed(made.address + made.size - 4, (0xFFFE68 - 0x400).to_bytes(4, "little"))
    assert set(known.left_out(build, KNOWN)) == set(PARTS)


@pytest.mark.debian12("it wants the layout of that build")
def test_negative_control_offsets_alone_accept_most_flips() -> None:
    """What the checker did before: a jump can be flipped and every item still holds."""
    text = LAYOUT_TEXT
    accepted = tried = 0
    for jump in conditional_jumps("get_page_from_l1e")[::8]:
        build = Variant()
        build.poke(*flipped(jump))
        fitted = parse_header(fit(text, parse_header(text), build)[0])
        accepted += not check_all(fitted, build).refused
        tried += 1
    assert tried >= 5 and accepted >= tried - 1


# -- what else can differ -----------------------------------------------------------------------


def test_another_callee_is_not_accepted() -> None:
    """The bytes of a call are an address: the function that it leads to counts."""
    function = installed().symbol("put_page_from_l1e")
    body = range(function.address, function.address + function.size)
    call = next(i for i in code_of(function.name) if i.target and i.target not in body and i.size == 5)
    other = installed().symbol("put_pt_page").address - call.address - 5
    build = Changed(call.address + 1, other.to_bytes(4, "little", signed=True))
    assert "l1_update" in known.left_out(build, KNOWN)


def test_another_alternative_is_not_accepted() -> None:
    """What is put in the place of an instruction at boot is part of the function."""
    start = installed().symbol("do_mmu_update").address
    place = known.alternatives(installed())[start][0].replacement
    build = Changed(place, bytes([installed().read(place, 1)[0] ^ 1]))
    assert "l1_update" in known.left_out(build, KNOWN)


@pytest.mark.parametrize(
    ("option", "symbol"), [(option, symbol) for option, names in known.OPTIONS.items() for symbol in names]
)
def test_a_build_with_another_option_is_refused_by_part(option: str, symbol: str) -> None:
    build = Variant()
    build.rename("panic", symbol)
    reasons = known.left_out(build, KNOWN)
    assert set(reasons) == set(PARTS)
    assert all(f"{option} (it has {symbol})" in why for why in reasons.values())


def test_lists_are_not_mixed() -> None:
    """Half of the functions of one known build and half of another are of none."""
    lines = sorted(known.lines(PARTS["l1_update"], installed()))
    halves = [known.Known("a", frozenset(lines[::2])), known.Known("b", frozenset(lines[1::2]))]
    assert "l1_update" in known.left_out(installed(), halves)
    assert not known.left_out(installed(), [*halves, *KNOWN])


@pytest.mark.debian12("it wants the layout of that build")
def test_the_reason_names_what_differs() -> None:
    jump = conditional_jumps(known.place(installed(), "mod_l1_entry").name)[0]
    reasons = known.left_out(Changed(*flipped(jump)), KNOWN)
    assert set(reasons) == {"l1_update", "ranges"}
    assert re.search(r"1 of its \d+ functions .*nearest: 4\.17\.7.*mod_l1_entry", reasons["l1_update"])


def test_without_a_list_nothing_is_known(tmp_path: Path) -> None:
    assert set(known.left_out(installed(), known.read_known(tmp_path))) == set(PARTS)
    (tmp_path / "x.txt").write_text("# a comment\nnot a line of a list\n")
    with pytest.raises(UnusableInput, match="not a line of a list"):
        known.read_known(tmp_path)


# -- what comes of it ---------------------------------------------------------------------------


def test_what_is_left_out_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("check_layout.read_known", list)
    assert main(["--quiet", "--fit", str(tmp_path / "layout.h"), "--emit-parts", str(tmp_path)]) == 0
    assert "LEFT OUT l1_update: no build is known" in capsys.readouterr().out
    assert "#define PAYLOAD_PARTS\t0x1\n" in (tmp_path / "parts.h").read_text()
    left = (tmp_path / "left-out").read_text().splitlines()
    assert left == [f"{part}: no build is known" for part in ("l1_update", "table_refs", "ranges")]


@pytest.mark.debian12("it wants the layout of that build")
@pytest.mark.parametrize(
    "missing", [(), ("l1_update",), ("table_refs",), ("ranges",), ("l1_update", "table_refs", "ranges")]
)
def test_a_payload_with_an_unproven_part_is_refused(missing: tuple[str, ...]) -> None:
    built = XEN_DIR.parents[1] / "build/pagetable/xen/trapless_pagetable.livepatch"
    if not built.exists():
        pytest.skip("the payload is not built")
    report = Report()
    loops = read_loops(built.with_name("zero_run_sites.h"))
    check_payload(report, built, HEADER, installed(), loops, missing)
    assert report.refused == (["payload: parts"] if missing else [])
    # A part that replaces no function of Xen's is known by its own.
    if missing == ("ranges",):
        assert "has ranges_call" in str(dict(report.verdicts)["payload: parts"])
