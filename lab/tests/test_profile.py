# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The profiler: the plugin's file, names, groups, the folded format, the command line; and one machine."""

import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import plugin_mutants
from trapless_lab import artifacts, cli, compiler, host
from trapless_lab.errors import LabError
from trapless_lab.machines import guest, pair, qemu, runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.plugins import counts, plugin
from trapless_lab.plugins.counts import Counts
from trapless_lab.profiler import binaries, flame, groups, kallsyms, profile
from trapless_lab.profiler.attribution import Profile, adds_up, summarise
from trapless_lab.profiler.profile import Request
from trapless_lab.progress import Progress
from trapless_lab.symbols import Area, Symbols

XEN, KERNEL = 0xFFFF82D040200000, 0xFFFFFFFF81000000
SYMBOLS = Symbols(
    [
        Area(
            "xen",
            XEN,
            XEN + 0x1000,
            ((XEN + 0x100, "lstar_enter"), (XEN + 0x200, "pv_hypercall"), (XEN + 0x300, "do_mmu_update")),
        ),
        Area("kernel", KERNEL, KERNEL + 0x1000, ((KERNEL, "_text"), (KERNEL, "do_exit"))),
    ]
)

# lstar_enter calls pv_hypercall, which calls do_mmu_update; the kernel is in do_exit, then user code runs.
LINES = f"""\
begin
insn {XEN + 0x100:x} 4
insn {XEN + 0x300:x} 2
insn {XEN + 0x304:x} 1
jump {XEN + 0x304:x} {XEN + 0x800000:x}
insn {KERNEL + 8:x} 5
node 5 4 {XEN + 0x210:x}
leaf 5 {XEN + 0x300:x} 2 3
node 4 2 {XEN + 0x104:x}
node 0 -1 0
leaf 0 0 3 10
node 1 -1 0
leaf 1 {KERNEL + 8:x} 1 5
node 2 -1 0
leaf 2 {XEN + 0x100:x} 4 4
end 22
"""


def parsed(text: str = LINES) -> Counts:
    return counts.parse(text.splitlines())


def summary() -> Profile:
    return summarise(parsed(), SYMBOLS)


def test_the_plugins_file() -> None:
    found = parsed()
    assert (found.total, found.intervals) == (22, 1)
    assert found.instructions[XEN + 0x300] == 2
    assert found.stacks[(XEN + 0x104, XEN + 0x210, XEN + 0x300)] == 3
    assert found.runs[(XEN + 0x104, XEN + 0x210, XEN + 0x300)] == 2
    assert found.jumps == {(XEN + 0x304, XEN + 0x800000)}


def test_intervals_are_added() -> None:
    found = parsed(LINES + LINES)
    assert (found.total, found.intervals) == (44, 2)
    assert found.stacks[(0,)] == 20


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (LINES.replace("end 22\n", ""), "in the middle"),
        (LINES.replace("end 22", "end 23"), "hold 22 instructions of 23"),
        (LINES.replace("node 4 2", "note 4 2"), "line 9"),
        (LINES.replace("node 4 2", "node 4 9"), "line 16"),
        (LINES.removeprefix("begin\n"), "line 1"),
    ],
)
def test_an_incomplete_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(LabError, match=complaint):
        parsed(text)


def test_nearest_symbol_of_the_same_area() -> None:
    assert SYMBOLS.find(XEN + 0x2FF) == (XEN + 0x200, "pv_hypercall")
    assert SYMBOLS.find(XEN + 8) == (XEN, "[xen]")
    assert SYMBOLS.find(XEN + 0x1000) is None
    assert SYMBOLS.find(KERNEL + 4) == (KERNEL, "do_exit")  # and not the mark _text


def test_areas_must_not_overlap() -> None:
    with pytest.raises(LabError, match="a and in b"):
        Symbols([Area("a", 0, 0x1000), Area("b", 0xFFF, 0x2000)])


def test_spaces_groups_symbols_and_stacks_add_up() -> None:
    found = summary()
    assert found.spaces == {"xen": 7, "kernel": 5, "user": 10}
    assert found.groups == {
        ("xen", "entry and exit"): 4,
        ("xen", "do_mmu_update"): 3,
        ("kernel", "exit and wait"): 5,
        ("user", "user"): 10,
    }
    assert sum(symbol.instructions for symbol in found.symbols) == found.total == 22
    assert sum(found.stacks.values()) == 22


def test_entries_are_runs_of_the_first_instruction() -> None:
    entries = {symbol.name: symbol.entries for symbol in summary().symbols}
    assert entries["do_mmu_update"] == 2
    assert entries["do_exit"] == 0
    assert summary().hypercalls == {"do_mmu_update": {"direct": 2}}
    assert summary().events == {"system calls into Xen": 4}


def test_unknown_code_is_counted_in_its_space() -> None:
    found = summarise(parsed(), Symbols([]))
    assert {symbol.name for symbol in found.symbols} == {"[xen]", "[kernel]", "[user]"}
    assert found.groups == {("xen", "other Xen"): 7, ("kernel", "other kernel"): 5, ("user", "user"): 10}


@pytest.mark.parametrize(
    ("space", "stack", "group"),
    [
        ("xen", "lstar_enter pv_hypercall do_mmuext_op _get_page_type", "pin: validation"),
        ("xen", "lstar_enter pv_hypercall do_mmuext_op _get_page_type get_page_from_l1e", "pin: validation"),
        ("xen", "do_mmuext_op _get_page_type iommu_legacy_map iommu_map", "IOMMU"),
        ("xen", "do_mmuext_op payload:zero_run_demote_l1", "unpin: devalidation"),
        ("xen", "pv_hypercall do_mmu_update mod_l1_entry.isra.0", "do_mmu_update"),
        ("xen", "pv_hypercall payload:new_do_mmu_update", "do_mmu_update"),
        ("xen", "lstar_enter pv_hypercall __x86_indirect_thunk_rax", "entry and exit"),
        ("xen", "lstar_enter pv_hypercall do_xen_version", "other Xen"),
        ("xen", "[stub]", "entry and exit"),
        ("xen", "do_page_fault pv_ro_page_fault x86_emulate", "emulation of trapped writes"),
        ("xen", "svm_vmexit_handler hvm_emulate_one x86_emulate", "exits of a PVH guest"),
        ("xen", "[payload]", "other Xen"),
        ("kernel", "do_exit mmput xen_exit_mmap __xen_pgd_unpin __xen_pgd_walk", "pgd walk"),
        ("kernel", "do_exit __xen_pgd_walk __raw_callee_save_xen_pmd_val", "entry conversion (val, make)"),
        ("kernel", "asm_exc_page_fault exc_page_fault do_set_pte __xen_set_pte", "set_pte"),
        ("kernel", "entry_SYSCALL_64 do_syscall_64 kernel_clone", "fork"),
        ("kernel", "entry_SYSCALL_64 do_syscall_64 ksys_read", "other kernel"),
        ("user", "", "user"),
    ],
)
def test_groups(space: groups.Space, stack: str, group: str) -> None:
    assert groups.group_of(space, stack.split()) == group
    assert group in groups.names(space)


def payload_file() -> bytes:
    return artifacts.payload("pagetable", pagetable.NAME).read_bytes()


def require_known(space: groups.Space, *areas: Area) -> None:
    """Every name of a group must be that of a function of this build."""
    known = [name for area in areas for _, name in area.symbols]
    for group in groups.GROUPS:
        for function in group.functions if group.space == space else ():
            pattern = replace(group, functions=(function,)).pattern
            assert any(pattern.fullmatch(name) for name in known), f"{group.name}: {function}"


def test_names_of_xens_groups() -> None:
    xen = profile.hypervisor()
    beside = binaries.payload(payload_file(), xen.addresses)
    require_known("xen", *xen.around(None), Area("payload", 0, beside.size, beside.symbols))
    with pytest.raises(AssertionError, match="pin: validation"):
        require_known("xen", xen.area)  # without the payload's


def test_payload_is_placed_by_xens_jumps() -> None:
    xen = profile.hypervisor()
    beside = binaries.payload(payload_file(), xen.addresses)
    at = {name: offset for offset, name in beside.symbols}
    base, stock = xen.area.end + 0x100000, xen.addresses["iommu_legacy_map"]
    assert beside.replaces[stock] == at["payload:new_iommu_legacy_map"]
    jump = (stock, base + at["payload:new_iommu_legacy_map"])
    placed = beside.placed([(XEN, XEN + 5), jump])
    assert placed is not None
    assert placed.find(jump[1] + 1) == (jump[1], "payload:new_iommu_legacy_map")
    elsewhere = (xen.addresses["iommu_legacy_unmap"], base)
    with pytest.raises(LabError, match="not those of the payload"):
        beside.placed([jump, elsewhere])
    assert beside.placed([]) is None
    unnamed = Symbols(xen.around(None)).find(jump[1])
    assert unnamed is not None and unnamed[1] == "[payload]"


def test_symbols_of_another_xen_are_refused(tmp_path: Path) -> None:
    assert profile.hypervisor().area.find(XEN)[1] != "[xen]"
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/xen-4.17-amd64.gz").write_bytes(gzip.compress(bytes(4096)))
    with pytest.raises(LabError, match=r"install the Debian package xen-hypervisor-4\.17-amd64-dbg"):
        profile.hypervisor(tmp_path)
    symbols = host.xen(tmp_path).symbols
    symbols.parent.mkdir(parents=True)
    symbols.symlink_to(host.xen().symbols)
    with pytest.raises(LabError, match="not of one build"):
        profile.hypervisor(tmp_path)


def test_module_is_placed_by_its_sections() -> None:
    ours = artifacts.module("pagetable", "pool", pagetable.NAME).read_bytes()
    places = {".text": 0xFFFFFFFFC0200000, ".init.text": 0xFFFFFFFFC0200000, ".data": 0xFFFFFFFFC0300000}
    (text,) = binaries.module(pagetable.NAME, ours, places)
    assert text.symbols[1:]
    assert all(name.startswith(f"{pagetable.NAME}:") for _, name in text.symbols[1:])
    assert text.first == 0xFFFFFFFFC0200000


KALLSYMS = """\
ffffffff81000000 T startup_64
ffffffff81000000 T _text
ffffffff81000100 t first
ffffffff82000000 D data
"""


def test_kernel_symbols() -> None:
    area = kallsyms.parse(KALLSYMS)
    assert area.find(0xFFFFFFFF81000080) == (0xFFFFFFFF81000000, "startup_64")
    assert area.end == 0xFFFFFFFF81001000
    kallsyms.require(area, StepResult(kallsyms.PLACE, b"ffffffff81000000 T _text\n", 0, 0))


@pytest.mark.parametrize(
    "lines", ["", re.sub("[0-9a-f]{16}", "0" * 16, KALLSYMS), "ffffffff81000100 t first\n"]
)
def test_hidden_kernel_symbols_are_refused(lines: str) -> None:
    with pytest.raises(LabError, match="kallsyms"):
        kallsyms.parse(lines)


@pytest.mark.parametrize("shown", [b"", b"ffffffff9a000000 T _text\n"])
def test_a_kernel_at_another_address_is_refused(shown: bytes) -> None:
    with pytest.raises(LabError, match="not at 0xffffffff81000000"):
        kallsyms.require(kallsyms.parse(KALLSYMS), StepResult(kallsyms.PLACE, shown, 0, 0))


def output(text: str) -> StepResult:
    return StepResult(Step("workload", "x"), text.encode(), 0, 0)


def test_the_clocks_intervals() -> None:
    assert profile.intervals(output("hello\naround ns=50\n")) == [50]
    assert profile.intervals(output("profiled ns=40\nprofiled ns=2\naround ns=50\n")) == [40, 2]
    with pytest.raises(LabError, match="did not end"):
        profile.intervals(output("profiled ns=40\n"))


def test_agreement_with_the_clock() -> None:
    counted = Counts(total=1_000_000, intervals=1)
    assert profile.agrees(counted, [2_000_000]).holds
    assert profile.agrees(counted, [2_019_000]).holds
    assert not profile.agrees(counted, [2_025_000]).holds
    assert not profile.agrees(counted, [1_000_000, 1_000_000]).holds


def test_a_lost_group_does_not_add_up() -> None:
    found = summary()
    assert adds_up(found).holds
    found.groups = {key: n for key, n in found.groups.items() if key[0] != "kernel"}
    check = adds_up(found)
    assert not check.holds
    assert "groups 17" in check.text


def test_folded_format() -> None:
    lines = list(flame.folded(summary()))
    assert lines == [
        "kernel;do_exit 5\n",
        "user 10\n",
        "xen;lstar_enter 4\n",
        "xen;lstar_enter;pv_hypercall;do_mmu_update 3\n",
    ]
    assert all(re.fullmatch(r"[^; ]+(?:;[^;]+)* \d+\n", line) for line in lines)


def test_drawing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "inferno"
    fake.write_text('#!/bin/sh\necho "$*"; cat\n')
    fake.chmod(0o755)
    monkeypatch.setattr(flame, "program", lambda: fake)
    drawn = flame.draw(summary(), "a title").decode()
    assert "--title a title" in drawn
    assert drawn.endswith("".join(flame.folded(summary())))
    fake.write_text("#!/bin/sh\necho no such colour >&2; exit 1\n")
    with pytest.raises(LabError, match="no such colour"):
        flame.draw(summary(), "a title")


def test_missing_drawer_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> Path:
        raise LabError("cannot install inferno")

    monkeypatch.setattr(flame, "program", missing)
    code, shown, asked = invoke(monkeypatch, "--flame", str(tmp_path / "x.svg"), "bare", "--", "true")
    assert (code, asked) == (1, [])
    assert "cannot install inferno" in shown


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "x.c", tmp_path / "out" / "x"
    source.write_text("int main(void) { return 0; }\n")
    compiler.compile_c(source, target, ())
    assert target.exists()
    target.unlink()
    source.write_text("int main(void) { return no_such; }\n")
    with pytest.raises(LabError, match="no_such"):
        compiler.compile_c(source, target, ())
    assert list(target.parent.iterdir()) == []


def test_programs_carry_each_marker_once() -> None:
    header = (plugin.SOURCES / "profiled.h").read_text()
    markers = re.findall(r"#define PROFILED_(?:START|STOP) (.*)", header)
    assert len(markers) == 2
    for program in (guest.build("profiled"), guest.build("spawn")):
        for marker in markers:
            code = bytes(int(byte, 16) for byte in marker.split(","))
            assert program.read_bytes().count(code) == 1, program


def test_plugin_is_loaded_with_its_output() -> None:
    outputs = qemu.Outputs(Path("/c"), Path("/s"), Path("/t"), Path("/q"))
    images = qemu.Images(Path("/k"), Path("/i"))
    loaded = [qemu.Plugin(Path("/p.so"), Path("/a,b"))]
    made = " ".join(qemu.argv(Path("/qemu"), MACHINES["bare"], images, outputs, loaded))
    assert "-plugin /p.so,output=/a,,b" in made
    assert "-plugin" not in " ".join(qemu.argv(Path("/qemu"), MACHINES["bare"], images, outputs))


def invoke(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, broken: bool = False
) -> tuple[int, str, list[Request]]:
    asked: list[Request] = []

    def take(request: Request, _progress: Progress, _keep: Path | None) -> Profile:
        asked.append(request)
        found = summary()
        found.checks = [profile.agrees(parsed(), [88 if broken else 44])]
        return found

    monkeypatch.setattr(profile, "take", take)
    ran = CliRunner().invoke(cli.main, ["profile", *arguments])
    return ran.exit_code, ran.output, asked


def test_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written, stacks = tmp_path / "p.json", tmp_path / "p.folded"
    code, shown, asked = invoke(
        monkeypatch,
        *("--per", "2", "--xen-arg", "spec-ctrl=no", "--json", str(written), "--folded", str(stacks)),
        *("xen-strict", "--", "spawn", "fork-exit", "-n", "2"),
    )
    assert code == 0, shown
    assert asked[0].workload == ("spawn", "fork-exit", "-n", "2")
    assert asked[0].machine.xen_args == ("spec-ctrl=no",)
    assert all(part in shown for part in ("entry and exit", "do_mmu_update", "holds"))
    found = json.loads(written.read_text())
    assert (found["total"], found["per"], found["spaces"]["user"]) == (22, 2, 5)
    assert found["hypercalls"] == {"do_mmu_update": {"direct": 1}}
    assert stacks.read_text() == "".join(flame.folded(summary()))


def test_failed_check_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown, _ = invoke(monkeypatch, "bare", "--", "true", broken=True)
    assert code == 1
    assert "FAILS" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["no-such", "--", "true"], 2, "there are: bare, xen-strict"),
        (["bare-smp", "--", "true"], 2, "more than one CPU"),
        (["bare"], 2, "Missing argument"),
        (["--boosted", "bare", "--", "true"], 2, "bare has no PV page tables"),
        (["--xen-arg", "x", "bare", "--", "true"], 2, "bare runs no Xen"),
        (["--json", "/no/such/dir/x", "bare", "--", "true"], 1, "/no/such/dir"),
        (["--flame", "/no/such/dir/x", "bare", "--", "true"], 1, "/no/such/dir"),
    ],
)
def test_wrong_commands_boot_nothing(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, complaint: str
) -> None:
    found, shown, asked = invoke(monkeypatch, *arguments)
    assert (found, asked) == (code, [])
    assert complaint in shown


def callers(found: Profile, function: str) -> set[str]:
    """Return a function's callers, without thunks."""
    stacks = ([f for f in frames if not f.startswith("__x86_")] for frames in found.stacks)
    return {caller for stack in stacks for caller, callee in pairwise(stack) if callee == function}


@pytest.mark.long("a profiled boot; the profiler serves experiments")
@pytest.mark.machine
def test_machine(tmp_path: Path) -> None:
    """The count agrees with the clock, and the stacks are existing calls; neither holds for the control."""
    request = Request(MACHINES["xen-strict"], ("spawn", "fork-exit", "-n", "40"))
    libraries = {"sound": plugin.build("profile"), "blind": plugin_mutants.build("profile-blind", "profile")}
    outputs = {variant: tmp_path / variant for variant in libraries}
    area = kallsyms.kernel(Progress())
    transcript = runner.run(
        request.profiled_machine,
        request.steps,
        plugins=[qemu.Plugin(libraries[variant], path) for variant, path in outputs.items()],
    )
    counted = {variant: counts.parse(path.read_text().splitlines()) for variant, path in outputs.items()}
    found = profile.resolved(request, transcript, counted["sound"], area)
    assert found.holds, found.checks

    modules = [
        binaries.module(part.name, part.built(pair.DEFAULT).read_bytes(), {".text": at << 32})
        for at, part in enumerate(pagetable.everything(request.machine))
        if part.guest_path.endswith(".ko")
    ]
    require_known("kernel", area, *chain.from_iterable(modules))

    control = profile.resolved(request, transcript, counted["blind"], area)
    assert [check.holds for check in control.checks] == [True, False]
    # They do not agree over an interval that is one marker longer on both sides.
    around = re.findall(r"^around ns=(\d+)$", transcript["workload"].output, re.MULTILINE)
    assert not profile.agrees(counted["sound"], map(int, around)).holds

    # The actions of 40 processes are known: each forks, pins and unpins its tables, and exits.
    entries = Counter({(symbol.space, symbol.name): symbol.entries for symbol in found.symbols})
    assert entries["kernel", "kernel_clone"] == entries["kernel", "do_exit"] == 40
    assert entries["kernel", "__xen_pgd_pin"] == entries["kernel", "__xen_pgd_unpin"] == 40
    assert set(found.hypercalls) >= {"do_mmu_update", "do_mmuext_op", "do_multicall", "do_iret"}
    direct = sum(counted["direct"] for counted in found.hypercalls.values() if "direct" in counted)
    assert direct <= entries["xen", "lstar_enter"]
    assert {"pin: validation", "IOMMU", "pgd walk", "fork", "user"} <= {name for _, name in found.groups}
    assert callers(found, "__xen_pgd_walk") == {"__xen_pgd_pin", "__xen_pgd_unpin"}
    assert callers(control, "__xen_pgd_walk") > {"__xen_pgd_pin", "__xen_pgd_unpin"}
    # A stack begins where its space is entered.
    outermost = Counter[tuple[str, str]]()
    for (space, *functions), number in found.stacks.items():
        outermost[space, functions[0] if functions else ""] += number
    assert outermost["xen", "lstar_enter"] > 0.8 * found.spaces["xen"]
    assert outermost["kernel", "entry_SYSCALL_64_after_hwframe"] > 0.5 * found.spaces["kernel"]
