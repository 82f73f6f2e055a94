# SPDX-License-Identifier: Apache-2.0 OR MIT
"""trapless_pvmmu: memory is as under the stock kernel, whichever of the module's switches are on."""

import contextlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

import pvmmu
from machines import (
    GUEST,
    MEMORY,
    STOP_FORKERS,
    insmod,
    payload_file,
    pvmmu_file,
    refused,
    require_memory_back,
)
from pvmmu import step
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import Tree
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.session import GuestError
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.parts import PAYLOAD_PART, POOL_PART, PVMMU, PVMMU_PART, PVMMU_SWITCHES

pytestmark = pytest.mark.machine

CYCLES = 6

# For each mutant the programs that must fail, and what they print then.
CONTROLS = {
    "fork-careless": {
        "tracked dirty": "Shared_Dirty is",
        "tracked free": "free: page",
        "pinned": "page",
    },
    "no-flush": {"tracked flush": "flush: page 3 does not hold"},
    "no-count": {"filemap read": "pages are counted"},
    "reuse-untracked": {
        "tracked soft-dirty": "is not soft-dirty",
        "tracked merged": "is not soft-dirty",
        "tracked uffd": "no fault",
    },
    "copy-kept": {"forks freed": "KiB are lost"},
    "entries-pinned": {"pinned": "page"},
    "entries-exclusive": {"cow --rounds 200": "does not hold"},
    "entries-kept": {"forks freed": "KiB are lost"},
    "zap-kept": {"moves freed": "KiB are lost"},
    "switch-gs-lost": {"segments 50": "a child failed"},
    "switch-any-selector": {"segments 50": "a child failed"},
    "reuse-shared": {
        "cowthreads 20": "page",
        "samepage": "does not hold",
        "cow --rounds 200": "does not hold",
    },
}
UNKNOWN = {
    "unknown-symbol": "no symbol trapless_no_such_symbol",
    "unknown-thunk": "is not the thunk we know",
}
TRACING = "/sys/kernel/tracing"
# How many functions a tracer or a hook is attached to.
ATTACHED = f"wc -l <{TRACING}/enabled_functions"


def _variants(*names: str) -> Tree:
    files: Tree = {}
    for name in names:
        files = {**files, **pvmmu_file(name)}
    return files


@pytest.fixture(scope="module")
def smp() -> Transcript:
    """Two CPUs, no payload: the oracles with all on.

    No switch is toggled while both CPUs work: QEMU 7.2 may then go on executing a breakpoint that the
    kernel's text patching has long replaced in memory, and the machine hangs. A stock kernel hangs in the
    same way if its function tracer is toggled under a storm of forks. On one CPU switches are toggled
    under load. Loading the module patches text, too; what hangs then is booted again (monitor.py).
    """
    return runner.run(
        MACHINES["xen-relaxed-smp"],
        [
            pvmmu.load(),
            step("Xen's switches", f"cat {PVMMU_SWITCHES}/{pvmmu.XEN_SWITCHES[0]}", None),
            *pvmmu.oracles("on", ("cow", "cowthreads 20", "pinned", "filemap race 40")),
            *pvmmu.oracles("on", ("forks race 40", "forks text 100", "forks torn 200", "segments 200")),
            *pvmmu.oracles("on", ("forks again", "moves pages", "moves race", "moves discard")),
            pvmmu.unload(),
        ],
        files=pagetable.files((PVMMU_PART,)),
        modules=pvmmu.MODULES,
    )


@pytest.fixture(scope="module")
def served() -> Transcript:
    """Two CPUs and the payload, which changes ranges of entries in one call."""
    ranges = f"{PVMMU_SWITCHES}/xen_ranges"
    programs = ("cow", "cowthreads 20", "pinned", "forks race 40", "forks again", "moves pages", "moves race")
    return runner.run(
        MACHINES["xen-strict-smp"],
        [
            *PAYLOAD_PART.load,
            pvmmu.load(),
            step("ranges", f"cat {ranges}"),
            step("left out", f"cat {PVMMU_SWITCHES}/left_out"),
            *pvmmu.oracles("served", programs),
            # What is refused goes on in batches, at the next call.
            step("ranges off", f"echo 0 >{ranges}"),
            *pvmmu.oracles("not served", ("cow --seed 3", "moves race 40")),
            step("ranges on", f"echo 1 >{ranges}"),
            pvmmu.unload(),
            *PAYLOAD_PART.unload,
        ],
        files=pagetable.files((PAYLOAD_PART, PVMMU_PART)),
        modules=pvmmu.MODULES,
    )


@pytest.fixture(scope="module")
def storm() -> Transcript:
    """One CPU: the oracles with switches thrown, and a storm of forks, loading and unloading under it."""
    again = [pvmmu.unload("rmmod under forks"), pvmmu.load("insmod under forks")]
    return runner.run(
        MACHINES["xen-relaxed"].with_icount(),
        [
            pvmmu.SWAP,
            step("warm up", "spawn fork-exec -n 40"),
            step("memory before", MEMORY),
            pvmmu.load(),
            pvmmu.toggling(
                ("cow --seed 6", "cowthreads 20", "pinned", "filemap race 40", "tracked swap", "moves pages")
            ),
            step("storm", pvmmu.STORM),
            *again,
            step("off under forks", pvmmu.turn(pvmmu.GUEST_SWITCHES, False)),
            step("on under forks", pvmmu.turn(pvmmu.GUEST_SWITCHES, True)),
            pvmmu.unload("last rmmod"),
            step("stop", f"{STOP_FORKERS}; sleep 1; swapoff /dev/zram0"),
            step("memory after", MEMORY),
        ],
        files=pagetable.files((PVMMU_PART,)),
        modules=pvmmu.MODULES,
    )


@pytest.fixture(scope="module")
def everything() -> Transcript:
    """One CPU, strict: everything of trapless in both orders, switches, refusals, tracers, many rounds."""
    payload, pool, guest = PAYLOAD_PART, POOL_PART, PVMMU_PART
    switch = f"{PVMMU_SWITCHES}/walk"
    tracer = f"cd {TRACING} && echo filemap_map_pages >set_ftrace_filter && echo function >current_tracer"
    probe = "echo p:pvmmu/probe ptep_set_access_flags >kprobe_events && echo 1 >events/pvmmu/enable"
    untraced = "echo 0 >events/pvmmu/enable && echo >kprobe_events && echo nop >current_tracer"
    traced = f"cd {TRACING} && grep -c filemap_map_pages <trace; grep -c 'probe:' <trace"
    cycle = f"insmod {guest.guest_path} && spawn fork-exec -n 5 >/dev/null && rmmod {PVMMU}"
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            pvmmu.SWAP,
            step("tracing", f"mount -t tracefs tracefs {TRACING}; {ATTACHED}"),
            *(insmod(name, name=name, expect=None) for name in UNKNOWN),
            step("attached after refusals", ATTACHED),
            *payload.load,
            *pool.load,
            *guest.load,
            step("attached", ATTACHED),
            insmod(PVMMU, name="second insmod", expect=None),
            *pvmmu.oracles("everything"),
            step("switches on", f"cd {PVMMU_SWITCHES} && cat {' '.join(pvmmu.GUEST_SWITCHES)}"),
            *(
                step(f"garbage {text!r}", f"echo '{text}' >{switch}; echo rc $?; cat {switch}", expect=None)
                for text in ("maybe", "2", "")
            ),
            step("Xen's switches", f"cd {PVMMU_SWITCHES} && cat {' '.join(pvmmu.XEN_SWITCHES)}"),
            # The pool is unloaded before the module, and loaded after it.
            *(replace(s, name=f"{s.name}, first") for s in pool.unload),
            *pvmmu.oracles("without the pool", ("cow --seed 3",)),
            *(replace(s, name=f"{s.name}, last") for s in pool.load),
            *pvmmu.oracles("the other order", ("cow --seed 4",)),
            step("all off", pvmmu.turn(pvmmu.GUEST_SWITCHES, False)),
            step("switches off", f"cd {PVMMU_SWITCHES} && cat {' '.join(pvmmu.GUEST_SWITCHES)}"),
            step("attached when off", ATTACHED),
            *pvmmu.oracles("all off", ("cow --seed 5",)),
            *guest.unload,
            step("tracer", f"{tracer} && {probe}"),
            step("load under a tracer", f"insmod {guest.guest_path}"),
            step("use under a tracer", "filemap read 2 && cow --rounds 20"),
            step("traced", traced, expect=None),
            step("untrace", f"cd {TRACING} && {untraced}"),
            step("use after a tracer", "filemap read 2 && cow --rounds 20"),
            step("unload after a tracer", f"rmmod {PVMMU}"),
            step("warm up", "spawn fork-exec -n 40"),
            step("memory before", MEMORY),
            step("cycles", " && ".join([cycle] * CYCLES)),
            step("memory after", MEMORY),
            *pool.unload,
            *payload.unload,
        ],
        files={**pagetable.files((payload, pool, guest)), **_variants(*UNKNOWN)},
        modules=pvmmu.MODULES,
    )


@pytest.fixture(scope="module")
def controls() -> Transcript:
    """Each mutant, and the program that passes without it."""
    programs = sorted({program for caught in CONTROLS.values() for program in caught})
    steps = pvmmu.oracles("not loaded", programs)
    for variant, caught in CONTROLS.items():
        steps += [
            step(variant, f"insmod {GUEST}/{variant}.ko"),
            *(step(f"{program}, {variant}", program, None) for program in caught),
            pvmmu.unload(f"without {variant}"),
        ]
    return runner.run(MACHINES["xen-relaxed"], steps, files=_variants(*CONTROLS))


def test_memory_on_two_cpus(smp: Transcript) -> None:
    """If a program had failed, the fixture would have."""
    assert smp.kernel_warnings() == []


def test_memory_on_two_cpus_with_the_payload(served: Transcript) -> None:
    """The same, with ranges of entries that Xen changes in one call."""
    assert served["ranges"].output.split() == ["1"]
    assert served["left out"].output == ""
    assert served.kernel_warnings() == []


STORM = pytest.mark.long(
    "a boot of a minute: make check throws the same switches at rest, and runs the same programs on two CPUs"
)


@STORM
def test_switches_thrown_under_load(storm: Transcript) -> None:
    """The same while switches are toggled and the module is unloaded and loaded, under a storm of forks."""
    assert int(storm["toggling"].output.split()[-1]) >= len(pvmmu.GUEST_SWITCHES)
    assert storm["stop"].output.split() == ["stopped"] * pvmmu.FORKERS
    assert storm.kernel_warnings() == []


@pytest.mark.parametrize("boot", ["everything", pytest.param("storm", marks=STORM)])
def test_unloading_gives_the_memory_back(request: pytest.FixtureRequest, boot: str) -> None:
    require_memory_back(request.getfixturevalue(boot))


def test_with_everything_else_in_both_orders(everything: Transcript) -> None:
    assert everything.kernel_warnings() == []


def test_switches(everything: Transcript) -> None:
    for value, state in (("1", "on"), ("0", "off")):
        assert everything[f"switches {state}"].output.split() == [value] * len(pvmmu.GUEST_SWITCHES)
    assert set(everything["Xen's switches"].output.split()) <= {"0", "1"}
    for text in ("maybe", "2", ""):
        output = everything[f"garbage {text!r}"].output.splitlines()
        assert output[-1] == "1"
        assert output[-2] != "rc 0"


def test_switches_of_a_payload_that_is_not_there(smp: Transcript) -> None:
    assert "No such device" in smp["Xen's switches"].output


def test_off_is_gone(everything: Transcript) -> None:
    """By ftrace's own list: with all switches off nothing is attached to any function but the pool's."""
    assert int(everything["attached"].output) > int(everything["attached when off"].output)


def test_unknown_kernels_are_refused(everything: Transcript) -> None:
    for name, reason in UNKNOWN.items():
        assert refused(everything[name].output, reason)
    before, after = everything["tracing"].output.split(), everything["attached after refusals"].output.split()
    assert before[-1] == after[-1]


def test_second_module_is_refused(everything: Transcript) -> None:
    assert refused(everything["second insmod"].output, "File exists")


def test_tracers_see_what_they_did(everything: Transcript) -> None:
    functions, probes = map(int, everything["traced"].output.split())
    assert functions > 0
    assert probes > 0


BROKEN = pytest.mark.long("a boot for twelve controls; make check has one, on Linux 6.12")


@BROKEN
@pytest.mark.parametrize(
    ("variant", "program"), [(variant, program) for variant, caught in CONTROLS.items() for program in caught]
)
def test_broken_modules_are_caught(controls: Transcript, variant: str, program: str) -> None:
    result = controls[f"{program}, {variant}"]
    assert result.rc != 0
    assert CONTROLS[variant][program] in result.output


@BROKEN
def test_lost_counts_are_noticed_by_the_kernel(controls: Transcript) -> None:
    assert any("Bad rss-counter" in line for line in controls.kernel_warnings())


@pytest.mark.long("a boot for a control")
def test_a_walk_that_skips_a_table_is_caught(tmp_path: Path) -> None:
    """Xen refuses to pin a table that is still mapped writable; how far the kernel gets then varies."""
    with contextlib.suppress(GuestError):
        runner.run(
            MACHINES["xen-relaxed"],
            [step("walk", f"insmod {GUEST}/walk-skips.ko && spawn fork-exec -n 10")],
            files=_variants("walk-skips"),
            work_dir=tmp_path,
        )
    assert re.search(r"multicall\(s\) failed", (tmp_path / "console.log").read_text(errors="replace"))


@pytest.mark.long("a boot for two controls")
def test_mistakes_in_fork_are_caught() -> None:
    """Pages are copied beside a thread that writes them, and mapped without their knowledge."""
    transcript = runner.run(
        MACHINES["xen-relaxed-smp"],
        [
            step("threads", f"insmod {GUEST}/copy-threads.ko"),
            step("torn", "forks torn", None),
            pvmmu.unload(),
            step("unmapped", f"insmod {GUEST}/text-unmapped.ko"),
            step("text", "forks text 20", None),
        ],
        files=_variants("copy-threads", "text-unmapped"),
    )
    assert "torn" in transcript["torn"].output
    assert any("Bad page map" in line for line in transcript.kernel_warnings())


@pytest.mark.long("a boot for three controls")
def test_mistakes_with_moving_memory_are_caught() -> None:
    """Translations that stay, and a bit that the hardware sets late: it takes another CPU to see them."""
    caught = {
        "move-no-flush": ("moves race 200", "by an old translation"),
        "move-late": ("moves race 400", "written and dropped"),
        "zap-no-flush": ("moves discard 200", "by an old translation"),
    }
    steps = [pvmmu.SWAP]
    for variant, (program, _) in caught.items():
        steps += [
            step(variant, f"insmod {GUEST}/{variant}.ko"),
            step(f"{program}, {variant}", program, None),
            pvmmu.unload(f"without {variant}"),
        ]
    transcript = runner.run(
        MACHINES["xen-relaxed-smp"], steps, files=_variants(*caught), modules=pvmmu.MODULES
    )
    for variant, (program, says) in caught.items():
        assert says in transcript[f"{program}, {variant}"].output


@pytest.mark.long("a boot for two controls")
def test_mistakes_of_the_payload_with_ranges_are_caught() -> None:
    """Bits that the hardware has set are lost: both calls are made, and the programs see what they do."""
    caught = {
        "move-late": ("moves race 400", "written and dropped"),
        "protect-careless": ("tracked dirty", "Shared_Dirty is"),
    }
    steps = [pvmmu.SWAP]
    for variant, (program, _) in caught.items():
        steps += [
            step(variant, f"xen-livepatch load {GUEST}/{variant}.livepatch"),
            pvmmu.load(f"insmod over {variant}"),
            step(f"{program}, {variant}", program, None),
            pvmmu.unload(f"without {variant}"),
            step(f"no {variant}", f"xen-livepatch revert {variant} && xen-livepatch unload {variant}"),
        ]
    files = pagetable.files((PVMMU_PART,))
    for variant in caught:
        files = {**files, **payload_file(variant)}
    transcript = runner.run(MACHINES["xen-strict-smp"], steps, files=files, modules=pvmmu.MODULES)
    for variant, (program, says) in caught.items():
        assert says in transcript[f"{program}, {variant}"].output


@pytest.mark.long("a boot for a control")
def test_entries_written_after_the_lock_are_caught() -> None:
    """A file is truncated while a batch is pending: its pages are freed with entries left."""
    transcript = runner.run(
        MACHINES["xen-relaxed-smp"],
        [step("load", f"insmod {GUEST}/late-batch.ko"), step("race", "filemap race 10", None)],
        files=_variants("late-batch"),
    )
    assert any("Bad page cache" in line for line in transcript.kernel_warnings())


# Each ends the machine, and how far it gets varies. An oops would be a machine that hangs for minutes.
FATAL = {
    "pin-unlocked": ("forks race 200", "unable to handle page fault"),
    "exit-elsewhere": ("cowthreads 20 && segments 400", r"multicall\(s\) failed"),
}


@pytest.mark.long("a boot for each control")
@pytest.mark.parametrize("variant", list(FATAL))
def test_fatal_mistakes_are_caught(variant: str, tmp_path: Path) -> None:
    """An entry is cleared while its table is read-only and not pinned yet; tables go that a CPU uses."""
    program, says = FATAL[variant]
    with contextlib.suppress(GuestError):
        runner.run(
            replace(MACHINES["xen-relaxed-smp"], linux_args=("oops=panic",)),
            [step(variant, f"insmod {GUEST}/{variant}.ko && {{ {program}; }}")],
            files=_variants(variant),
            work_dir=tmp_path,
        )
    assert re.search(says, (tmp_path / "console.log").read_text(errors="replace"))


def test_refused_on_bare_metal() -> None:
    transcript = runner.run(
        MACHINES["bare"], [insmod(PVMMU, name="not Xen", expect=None)], files=pagetable.files((PVMMU_PART,))
    )
    assert refused(transcript["not Xen"].output, "not a Xen PV guest")
    assert transcript.kernel_warnings() == []


def test_refused_where_the_kernel_preempts_itself() -> None:
    """One part is refused, so all are: nothing is attached, and the machine continues."""
    transcript = runner.run(
        replace(MACHINES["xen-relaxed"], linux_args=("preempt=full",)),
        [
            step("tracing", f"mount -t tracefs tracefs {TRACING}; {ATTACHED}"),
            insmod(PVMMU, name="preempt", expect=None),
            step("attached", f"{ATTACHED}; ls -d {PVMMU_SWITCHES}", expect=None),
            step("use", "cow --rounds 20"),
        ],
        files=pagetable.files((PVMMU_PART,)),
    )
    assert refused(transcript["preempt"].output, "not while the kernel preempts itself")
    assert "No such file" in transcript["attached"].output
    assert transcript["attached"].output.split()[0] == transcript["tracing"].output.split()[-1]
    assert transcript.kernel_warnings() == []
