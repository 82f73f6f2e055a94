# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The finder proves the eight loops of the installed hypervisor, and refuses each kind of wrong loop; the
emulator distinguishes trampolines that are equivalent to the loops from slightly different ones.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

import find_zero_runs  # noqa: E402
from check_layout import DEFAULT_SYMBOLS  # noqa: E402
from find_zero_runs import find_all, main  # noqa: E402
from layout_checker.hypervisor import Hypervisor  # noqa: E402
from layout_checker.known_functions import parts_header  # noqa: E402
from layout_checker.loops import Loop, read_loops  # noqa: E402
from layout_checker.report import Refused, Report  # noqa: E402
from variants import HEADER, Variant, installed, needs_xen, of_debian12  # noqa: E402
from zero_run_finder.emulation import Emulator, compare, differences, random_case  # noqa: E402
from zero_run_finder.finder import NAMES, Site, find  # noqa: E402
from zero_run_finder.flow import Program  # noqa: E402
from zero_run_finder.output import header, report  # noqa: E402
from zero_run_finder.trampolines import Trampolines  # noqa: E402

pytestmark = [needs_xen, of_debian12]

CASES = 40


@pytest.fixture(scope="module")
def hypervisor() -> Hypervisor:
    return installed()


@pytest.fixture(scope="module")
def sites(hypervisor: Hypervisor) -> dict[str, Site]:
    found, verdicts = find_all(hypervisor)
    assert not verdicts.refused, verdicts.lines()
    return {site.loop.name: site for site in found}


# -- the installed hypervisor -------------------------------------------------------------------


def test_all_loops_are_proven(sites: dict[str, Site]) -> None:
    assert list(sites) == NAMES


def test_the_roles_are_those_of_the_level(sites: dict[str, Site]) -> None:
    """As in Xen's source, whatever registers the compiler chose."""
    for name, site in sites.items():
        way, level = name.split("_l")
        looks = level in "23"
        assert site.group == (64 if looks else 512)
        assert site.step == (1 if way == "promote" or level == "1" else -1)
        assert bool(site.clear) == (level != "1")
        assert site.scratch in site.dead
        named = {site.index, site.pointer, site.key, site.clear}
        assert not named & set(site.dead)


def test_what_is_written_is_what_is_read(
    sites: dict[str, Site], hypervisor: Hypervisor, tmp_path: Path
) -> None:
    path = tmp_path / "zero_run_sites.h"
    path.write_text(header(list(sites.values()), hypervisor))
    assert read_loops(path) == [site.loop for site in sites.values()]
    text = "\n".join(report(list(sites.values()), hypervisor))
    assert all(name in text for name in NAMES)


# -- other hypervisors --------------------------------------------------------------------------


def changed(function: str, offset: int, old: str, new: str) -> Hypervisor:
    """The same hypervisor, compiled differently in one place."""
    hypervisor = Variant()
    address = hypervisor.symbol(function).address + offset
    assert hypervisor.read(address, len(bytes.fromhex(old))).hex() == old.replace(" ", "")
    hypervisor.poke(address, bytes.fromhex(new))
    return hypervisor


def place_of(function: str, start: int, text: str) -> int:
    """The offset of an instruction, the first such one from an offset on, in the installed hypervisor."""
    hypervisor = installed()
    symbol = hypervisor.symbol(function)
    for instruction in hypervisor.function(function):
        if instruction.address >= symbol.address + start and instruction.text == text:
            return instruction.address - symbol.address
    raise AssertionError(f"{function} has no {text}")


# Loop, function if not the loop's own, an instruction near the loop's head, its bytes and those behind
# it, what stands there instead, the reason.
CHANGES: list[tuple[str, str | None, str, str, str, str]] = [
    ("promote_l1", None, "cmp r15d, 0x200", "4181ff00020000", "4181ff00010000", "claim 3: after a round"),
    ("promote_l1", None, "mov qword ptr [r12], rdi", "49893c24", "49893e90", "claim 5: .* write"),
    ("promote_l2", None, "cmp ax, 0x1ff", "663dff01", "663dff02", "claim 3: where it is entered"),
    ("promote_l2", None, "add r14, 1", "4983c601", "4983c602", "claim 2"),
    ("promote_l2", None, "mov dword ptr [rsp + 0x2c], edx", "8954242c", "89542410", "claim 5: .* 0x10"),
    ("promote_l3", None, "add rbp, 8", "4883c508", "4883c308", "claim 2"),
    ("promote_l3", None, "add r13d, 1", "4183c501", "4183c502", "claim 3"),
    ("promote_l4", None, "and rdx, qword ptr [l1tf_addr_mask]", "482315164205000f84fb000000",
     "482315164205000f85fb000000", "claim 4: a zero entry makes it call printk|claim 4: .* leave it"),
    ("demote_l1", None, "add rbx, 8", "4883c308", "4883c310", "claim 2"),
    ("demote_l1", None, "lea r12, [rax + 0x1000]", "4c8da000100000", "4c8da000080000", "claim 3"),
    ("demote_l2", None, "sub r15, 8", "4983ef08", "4983ef10", "claim 2"),
    ("demote_l2", "put_page_from_l2e", "and ecx, 1", "83e1017475", "83e1017575", "not understood"),
    ("demote_l3", None, "test ebp, ebp", "85ed", "85e4", "claim"),
]  # fmt: skip


def head(sites: dict[str, Site], loop: str) -> tuple[str, int]:
    return sites[loop].loop.function.rpartition("#")[2], sites[loop].loop.offset


@pytest.mark.parametrize(("loop", "function", "text", "old", "new", "why"), CHANGES)
def test_a_changed_loop_is_refused(
    loop: str, function: str | None, text: str, old: str, new: str, why: str, sites: dict[str, Site]
) -> None:
    own, offset = head(sites, loop)
    place = place_of(function or own, 0 if function else max(0, offset - 0x80), text)
    with pytest.raises(Refused, match=why):
        find(Program(changed(function or own, place, old, new)), loop)


def test_a_round_for_a_present_entry_that_changes_more_is_refused(sites: dict[str, Site]) -> None:
    """In this variant it leaves %r13, the owner, as 0; one for a zero entry does not."""
    own, offset = head(sites, "promote_l1")
    call = place_of(own, offset, "call get_page_from_l1e")
    place = place_of(own, call - 16, "mov rsi, r13")
    assert place < call
    with pytest.raises(Refused, match="claim 8: a round changes r13"):
        find(Program(changed(own, place, "4c89ee", "4531ed")), "promote_l1")


def test_another_register_is_found_not_assumed(sites: dict[str, Site]) -> None:
    """In this variant an iteration clears %ebx."""
    own, offset = head(sites, "demote_l4")
    place = place_of(own, offset - 0x80, "xor r13d, r13d")
    assert find(Program(changed(own, place, "4531ed", "31db90")), "demote_l4").clear == "ebx"


@pytest.mark.parametrize("form", ["jump", "pointer", "alternative"])
def test_a_branch_into_the_overwritten_bytes_is_refused(form: str, sites: dict[str, Site]) -> None:
    hypervisor = Variant()
    target = sites["demote_l3"].head + (0 if form == "alternative" else 4)
    (data,) = (section.address + 64 for section in hypervisor.sections if section.name == ".data")
    if form == "jump":
        place = hypervisor.symbol("vfree").address + 40
        code = b"\xe9" + struct.pack("<i", target - place - 5)
    else:
        place = data
        code = struct.pack("<Q", target) if form == "pointer" else struct.pack("<i", target - place)
    hypervisor.poke(place, code)
    with pytest.raises(Refused, match="claim 1"):
        find(Program(hypervisor), "demote_l3")


@pytest.mark.parametrize(
    ("loop", "called", "instead", "why"),
    [
        ("promote_l3", "get_page_from_l3e", "get_page_from_l2e", "claim 1: .* 0 loops"),
        ("promote_l2", "get_page_from_l3e", "get_page_from_l2e", "claim 1: .* 2 loops"),
        ("promote_l2", "hvm_local_events_need_delivery", "printk", "claim 4: .* call printk"),
        ("demote_l4", "put_page_from_l4e", "put_page_from_l1e", "claim 1"),
    ],
)
def test_another_callee_is_refused(
    loop: str, called: str, instead: str, why: str, sites: dict[str, Site]
) -> None:
    own, offset = head(sites, loop)
    hypervisor = Variant()
    start = offset if called.startswith("hvm") else 0
    place = hypervisor.symbol(own).address + place_of(own, start, f"call {called}")
    target = hypervisor.symbol(instead).address
    hypervisor.poke(place, b"\xe8" + struct.pack("<i", target - place - 5))
    with pytest.raises(Refused, match=why):
        find(Program(hypervisor), loop)


def test_nothing_is_written_for_another_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Image and symbols of two builds: refused before any search."""
    symbols = bytearray(DEFAULT_SYMBOLS.read_bytes())
    build_id = installed().build_id
    symbols[symbols.find(build_id)] ^= 1
    path, written = tmp_path / "xen-syms", tmp_path / "zero_run_sites.h"
    path.write_bytes(symbols)
    assert main(["--syms", str(path), "--emit", str(written)]) == 1
    assert "REFUSED image" in capsys.readouterr().out
    assert not written.exists()


# -- what is not proven, and what was proven before ---------------------------------------------


@pytest.fixture
def one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All loops except one count as proven, without running the proofs."""
    monkeypatch.setattr(find_zero_runs, "find_all", lambda _: some_refused({"promote_l2"}))


def some_refused(refused: set[str]) -> tuple[list[Site], Report]:
    verdicts, sites = Report(), []
    for number, name in enumerate(NAMES):
        if name in refused:
            verdicts.refuse(name, "claim 5: why")
            continue
        loop = Loop(name, "function", 16 * number, b"\x90" * 5)
        sites.append(Site(loop, 0, "rbx", "", 1, "", "rbx", "", 512, "rax", ("rax",)))
        verdicts.accept(name)
    return sites, verdicts


def test_one_loop_that_is_not_proven_refuses_all(one_refused: None, tmp_path: Path) -> None:
    assert main(["--emit", str(tmp_path / "sites.h")]) == 1
    assert not (tmp_path / "sites.h").exists()


def test_or_is_left_out_with_a_message(
    one_refused: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(find_zero_runs, "report", lambda sites, _, out: [f"LEFT OUT {name}" for name in out])
    written, report = tmp_path / "sites.h", tmp_path / "sites.txt"
    assert main(["--quiet", "--leave-out", "--emit", str(written), "--report", str(report)]) == 0
    assert "LEFT OUT promote_l2: claim 5: why" in capsys.readouterr().out
    assert "Left out: promote_l2: claim 5: why" in written.read_text()
    assert report.read_text() == "LEFT OUT promote_l2\n"
    assert [loop.name for loop in read_loops(written)] == [name for name in NAMES if name != "promote_l2"]


def test_a_payload_without_any_loop_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_zero_runs, "find_all", lambda _: some_refused(set(NAMES)))
    assert main(["--leave-out", "--emit", str(tmp_path / "sites.h")]) == 1
    assert not (tmp_path / "sites.h").exists()


def test_a_stored_proof_is_used_only_for_the_same_image(
    hypervisor: Hypervisor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sites, _ = some_refused({"promote_l2"})
    monkeypatch.setattr(find_zero_runs, "find_all", lambda _: some_refused(set(NAMES)))
    stem, written = hypervisor.build_id.hex(), tmp_path / "sites.h"
    proof = header(sites, hypervisor, {"promote_l2": "claim 5: why"})
    (tmp_path / f"{stem}.h").write_text(proof)
    (tmp_path / f"{stem}.txt").write_text("LEFT OUT promote_l2: claim 5: why\n")
    arguments = ["--leave-out", "--known", str(tmp_path), "--emit", str(written)]
    assert main(arguments) == 0
    assert written.read_text() == proof
    shown = capsys.readouterr().out
    assert "LEFT OUT promote_l2" in shown and "7 of 8 loops" in shown
    written.unlink()
    digest = re.search(r"SHA-256 (\w)", proof)
    assert digest
    other = "1" if digest[1] == "0" else "0"
    (tmp_path / f"{stem}.h").write_text(proof.replace(digest[0], digest[0][:-1] + other))
    assert main(arguments) == 1
    assert not written.exists()


# -- trampolines --------------------------------------------------------------------------------


# The emulator plays them.
RUNS = """
	.globl plain_run_take, plain_run_drop
	.hidden plain_run_take, plain_run_drop
plain_run_take:
	int3
plain_run_drop:
	int3
"""


@pytest.fixture
def assemble(sites: dict[str, Site], hypervisor: Hypervisor, tmp_path: Path) -> Callable[..., Trampolines]:
    """Assembles zero_runs.S with one thing changed."""

    def build(
        source: Path = XEN_DIR / "zero_runs.S",
        old: str = "",
        new: str = "",
        enabled: bool = True,
        runs: bool = True,
    ) -> Trampolines:
        if not shutil.which("gcc"):
            pytest.skip("gcc is not installed")
        text = header(list(sites.values()), hypervisor)
        assert old in text
        (tmp_path / "zero_run_sites.h").write_text(text.replace(old, new))
        (tmp_path / "parts.h").write_text(parts_header({}))
        (tmp_path / "plain_runs.S").write_text(RUNS)
        compiled = tmp_path / "payload.o"
        # Beside zero_runs.S, whose folder it is.
        command = ["gcc", f"-I{tmp_path}", f"-I{XEN_DIR}", "-r", "-nostdlib", "-x", "assembler-with-cpp"]
        subprocess.run([*command, source, tmp_path / "plain_runs.S", "-o", compiled], check=True)
        return Trampolines(hypervisor, compiled, [site.loop for site in sites.values()], enabled, runs)

    return build


@pytest.fixture(scope="module")
def skip_unchecked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trampolines with the mutant that the differential test also detects."""
    copy = tmp_path_factory.mktemp("mutant") / "source"
    script = XEN_DIR.parents[1] / "scripts/mutant"
    subprocess.run([script, "pagetable", copy, "payload-skip-unchecked"], check=True)
    return copy / "pagetable/xen/zero_runs.S"


def loop_of(sites: dict[str, Site], name: str) -> Loop:
    return sites[name].loop


@pytest.mark.parametrize("name", NAMES)
def test_trampolines_do_what_the_loops_do(
    name: str, sites: dict[str, Site], hypervisor: Hypervisor, assemble: Callable[..., Trampolines]
) -> None:
    compare(hypervisor, HEADER, assemble(), loop_of(sites, name), CASES, seed=2)


@pytest.mark.parametrize("name", ["promote_l2", "demote_l4", "promote_l1", "demote_l1"])
@pytest.mark.parametrize("runs", [False, True])
def test_switched_off_they_do_nothing(
    name: str,
    runs: bool,
    sites: dict[str, Site],
    hypervisor: Hypervisor,
    assemble: Callable[..., Trampolines],
) -> None:
    """The number of checks for pending events is the same, too. Runs depend on both switches."""
    trampolines = assemble(enabled=False, runs=runs)
    stock, boosted = Emulator(hypervisor, HEADER), Emulator(hypervisor, HEADER, trampolines)
    choose = random.Random(name)
    for case in (random_case(choose, name) for _ in range(10)):
        outcomes = stock.run(case, 1), boosted.run(case, 1)
        assert not list(differences(case, *outcomes))
        assert outcomes[0].looks == outcomes[1].looks
    assert not boosted.runs


@pytest.mark.parametrize("name", ["promote_l1", "demote_l1"])
def test_without_the_part_no_run_is_asked_for(
    name: str, sites: dict[str, Site], hypervisor: Hypervisor, assemble: Callable[..., Trampolines]
) -> None:
    stock = Emulator(hypervisor, HEADER)
    without, with_runs = (Emulator(hypervisor, HEADER, assemble(runs=runs)) for runs in (False, True))
    choose = random.Random(name)
    for case in (random_case(choose, name) for _ in range(10)):
        expected = stock.run(case, 1)
        for boosted in (without, with_runs):
            assert not list(differences(case, expected, boosted.run(case, 1)))
    assert with_runs.runs and not without.runs


@pytest.mark.parametrize("name", NAMES)
def test_negative_control_seven_of_eight(
    name: str,
    sites: dict[str, Site],
    hypervisor: Hypervisor,
    assemble: Callable[..., Trampolines],
    skip_unchecked: Path,
) -> None:
    with pytest.raises(Refused, match="differ"):
        compare(hypervisor, HEADER, assemble(skip_unchecked), loop_of(sites, name), CASES, 1)


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("promote_l2", "clear=%ebp, ", "", "differ"),
        ("promote_l4", "clear=%r15d, ", "", "differ"),
        ("demote_l3", "clear=%r15d, ", "", "differ"),
        ("promote_l2", "unit=1, clear=%ebp, group=64", "unit=1, clear=%ebp, group=512", "looks"),
        ("demote_l2", "clear=%r13d, group=64", "clear=%r13d, group=512", "looks"),
        ("promote_l1", "key=%r12, unit=8, group=512", "key=%r12, unit=8, group=1024", "stopped|differ"),
        ("promote_l3", "index=%r13d, ", "", "differ|stopped|not return"),
        ("demote_l2", "index=%r14d, ", "", "differ|stopped|not return"),
        ("promote_l4", "group=512, scratch=%r10", "group=512, scratch=%rax", "differ"),
        ("demote_l1", "entry=\"(%rbx)\", step=1", "entry=\"8(%rbx)\", step=1", "differ|stopped"),
    ],
)  # fmt: skip
def test_negative_controls(
    name: str, old: str, new: str, why: str, sites: dict[str, Site], hypervisor: Hypervisor,
    assemble: Callable[..., Trampolines],
) -> None:  # fmt: skip
    """The trampolines differ slightly from the loop; the arguments are those of the installed build."""
    if old not in header(list(sites.values()), hypervisor):
        pytest.skip("another build: other registers")
    with pytest.raises(Refused, match=why):
        compare(hypervisor, HEADER, assemble(old=old, new=new), loop_of(sites, name), 4 * CASES, seed=3)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes zero_runs.S with one thing in it changed."""

    def write(old: str, new: str) -> Path:
        text = (XEN_DIR / "zero_runs.S").read_text()
        assert text.count(old) == 1
        changed = tmp_path / "changed.S"
        changed.write_text(text.replace(old, new))
        return changed

    return write


@pytest.mark.parametrize("name", ["promote_l1", "demote_l1"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(\\pointer, \\scratch, 8)", "8(\\pointer, \\scratch, 8)"),
        ("lea\t\\entry, %rdi", "lea\t8\\entry, %rdi"),
        ("\tmov\t%eax, %eax\n", ""),  # its high half is not the result
        ("jz\t.Lstock_\\name\n\t.ifnb\t\\index", "jnz\t.Lstock_\\name\n\t.ifnb\t\\index"),
        ("keep\tpop, \\scratch, %r11, %r10, %r9, %r8, %rdi, %rsi, %rdx, %rcx, %rax", ""),
    ],
)
def test_negative_controls_of_runs(
    name: str, old: str, new: str, sites: dict[str, Site], hypervisor: Hypervisor,
    assemble: Callable[..., Trampolines], edited: Callable[[str, str], Path],
) -> None:  # fmt: skip
    with pytest.raises(Refused, match=r"differ|stopped|return"):
        compare(hypervisor, HEADER, assemble(edited(old, new)), loop_of(sites, name), 4 * CASES, seed=3)


@pytest.mark.parametrize(
    ("name", "old", "new", "cases", "why"),
    [
        ("promote_l1", "\tadvance\t\\index, \\scratch\n", "", 4 * CASES, r"differ|stopped"),
        # Trampolines that never ask for a run differ in nothing, and are refused nevertheless.
        ("demote_l1", "\tkeep\tpush,", "\tjmp\t.Lstock_\\name\n\tkeep\tpush,", CASES, "no run"),
    ],
)
def test_negative_controls_of_one_loops_runs(
    name: str, old: str, new: str, cases: int, why: str, sites: dict[str, Site], hypervisor: Hypervisor,
    assemble: Callable[..., Trampolines], edited: Callable[[str, str], Path],
) -> None:  # fmt: skip
    with pytest.raises(Refused, match=why):
        compare(hypervisor, HEADER, assemble(edited(old, new)), loop_of(sites, name), cases, seed=3)
