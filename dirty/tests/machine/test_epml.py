# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The processor's log (docs/epml.md, a model) against memory that is written in a known way.

The model's own counts are the witness for what the module says, and each mistake that it can make is caught.
"""

import re
from pathlib import Path

import pytest

import module_steps
import oracle_steps as oracle
from trapless_lab import artifacts
from trapless_lab.machines import epml, runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

PROGRAM = "dirtylogged"
# What the ring must be too small for; all other cases need one that is not.
NEED_SMALL_RING = ("overrun", "interrupts")
EXACT = tuple(name for name in module_steps.names_of(PROGRAM) if name not in NEED_SMALL_RING)

ONE_CPU = MACHINES["bare"].with_icount()
TWO_CPUS = MACHINES["bare-smp"]

# Mutants of the module, and what catches them: a processor that still remembers that a page was logged does
# not log it again; one that is not armed when a kernel thread borrows the memory logs nothing; and a page may
# be there before the store for which it was mapped.
CONTROLS = {
    "module-no-flush": "again",
    "module-no-borrow": "borrowed",
    "module-fault-unseen": "in-faults",
}

INTERRUPTS = Step("interrupts", "grep trapless_epml /proc/interrupts")


# The oracle's scenarios that this mechanism might treat otherwise than dirty bits; the others are for
# make check-long.
SCENARIOS = (
    "one-writer",
    "straddle",
    "huge",
    "read",
    "io-uring",
    "racing-few",
    "noise",
)

# Kernel threads that write for a process.
BORROW = Step("insmod trapless_borrow", f"insmod {module_steps.GUEST}/borrow.ko")


def _run(machine: Machine, work_dir: Path, *steps: Step, mutants: tuple[str, ...] = ()) -> Transcript:
    borrowing = artifacts.module("dirty", "tests/module", "trapless_borrow")
    borrow = {f"{module_steps.GUEST}/borrow.ko": File(borrowing)}
    files = {**module_steps.module_files(*mutants), **borrow, **oracle.files()}
    modules = ("zram", *oracle.DISK_MODULES) if machine.disk else ()
    return runner.run(machine, steps, files=files, modules=modules, work_dir=work_dir)


def _cases(*names: str) -> Step:
    return module_steps.cases(PROGRAM, only=" ".join(names))


def _oracle(arguments: str, timeout_s: float) -> Step:
    """Return a step that holds libdirty's back end against memory."""
    return oracle.step("oracle", f"--backend epml {arguments}", timeout_s)


def _judged(transcript: Transcript) -> set[tuple[str, str]]:
    """Nothing was missed, and only what may be skipped was; return what was judged."""
    report = oracle.report(transcript, "oracle")
    assert report["rows"] and report["rejected"] == []
    assert oracle.bad(report) == []
    assert oracle.skipped(report).keys() <= oracle.EXPECTED_SKIPS
    assert transcript.kernel_warnings() == []
    return oracle.judged(report)


def _delivered(transcript: Transcript, cpus: int) -> int:
    """Return the interrupts that the kernel counted."""
    lines = transcript[INTERRUPTS.name].output.splitlines()
    assert len(lines) == cpus, lines
    return sum(int(count) for line in lines for count in line.split(":")[1].split()[:cpus])


def _complaint(transcript: Transcript, case: str) -> str:
    """Return what a case said before it failed."""
    found = re.search(rf"^{PROGRAM}: (.*)\nFAILED {case} ", transcript[PROGRAM].output, re.MULTILINE)
    assert found, transcript[PROGRAM].output
    return found[1]


def test_the_log_is_exact(tmp_path: Path) -> None:
    controls = [
        step
        for control, case in CONTROLS.items()
        for step in (
            module_steps.insmod(control),
            module_steps.cases(PROGRAM, name=control, only=case),
            module_steps.released(f"released, {control}"),
            module_steps.rmmod(f"rmmod {control}"),
        )
    ]
    transcript = _run(
        ONE_CPU.with_epml(),
        tmp_path,
        BORROW,
        *controls,
        module_steps.insmod(),
        _cases(*EXACT),
        module_steps.released("released"),
        module_steps.rmmod(),
        mutants=tuple(CONTROLS),
    )
    assert module_steps.passed(transcript, PROGRAM) == list(EXACT), transcript[PROGRAM].output
    for control, case in CONTROLS.items():
        assert module_steps.failed(transcript, control) == [case]
        assert "not reported" in transcript[control].output
    assert epml.counts(tmp_path).overruns == 0
    assert transcript.kernel_warnings() == []


@pytest.fixture(scope="module")
def two_processors(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """One boot: every case of memory written in a known way, then libdirty's back end."""
    return _run(
        TWO_CPUS.with_epml().with_disk(),
        tmp_path_factory.mktemp("two-processors"),
        BORROW,
        oracle.SWAP,
        oracle.PREPARE,
        module_steps.insmod(),
        _cases(*EXACT),
        _oracle(f"--target other {oracle.only(SCENARIOS)}", 400),
        module_steps.released("released"),
        module_steps.rmmod(),
    )


def test_the_log_is_exact_on_two_processors(two_processors: Transcript) -> None:
    assert module_steps.passed(two_processors, PROGRAM) == list(EXACT), two_processors[PROGRAM].output


def test_nothing_is_missed(two_processors: Transcript) -> None:
    assert _judged(two_processors) == {(scenario, "other") for scenario in SCENARIOS}


def test_interrupts_empty_the_ring(tmp_path: Path) -> None:
    transcript = _run(
        ONE_CPU.with_epml(entries=16), tmp_path, module_steps.insmod(), _cases("interrupts"), INTERRUPTS
    )
    assert module_steps.passed(transcript, PROGRAM) == ["interrupts"], transcript[PROGRAM].output
    counted = epml.counts(tmp_path)
    assert _delivered(transcript, cpus=1) == counted.interrupts
    # 2000 pages, once each, and those that the program needs itself. QEMU may deliver an interrupt so late,
    # on a busy host, that the ring was full: the module has said so, or "interrupts" would have failed.
    assert 2000 <= counted.logged + counted.overruns < 2200


@pytest.mark.long("a boot for a mistake of the model, not of the module")
def test_nothing_is_lost_without_interrupts(tmp_path: Path) -> None:
    """A ring that is not emptied in time runs over, on two processors, and that is reported.

    It is so small that either half of what "overrun" writes is too much, should a processor take over.
    """
    transcript = _run(
        TWO_CPUS.with_epml(entries=512, faults=("mute",)),
        tmp_path,
        module_steps.insmod(),
        _cases("overrun", "threads"),
        INTERRUPTS,
    )
    assert module_steps.passed(transcript, PROGRAM) == ["overrun", "threads"], transcript[PROGRAM].output
    assert _delivered(transcript, cpus=2) == 0
    assert epml.counts(tmp_path).overruns > 0
    assert transcript.kernel_warnings() == []


@pytest.mark.long("a boot for a mistake of the model, not of the module")
def test_a_model_that_drops_is_caught(tmp_path: Path) -> None:
    """The authors' fault (a), and a store of which the second page is not logged."""
    transcript = _run(
        ONE_CPU.with_epml(entries=256, faults=("mute", "drop-on-full", "first-page")),
        tmp_path,
        module_steps.insmod(),
        _cases("overrun", "straddling"),
        _oracle(f"--target own {oracle.only(['one-writer'])}", 200),
    )
    assert [row["scenario"] for row in oracle.bad(oracle.report(transcript, "oracle"))] == ["one-writer"]
    assert module_steps.failed(transcript, PROGRAM) == ["overrun", "straddling"]
    assert "was lost" in _complaint(transcript, "overrun")
    assert "was written and not reported" in _complaint(transcript, "straddling")


@pytest.mark.long("a boot for a mistake of the model, not of the module")
def test_a_processor_that_stays_armed_is_caught(tmp_path: Path) -> None:
    """With a log that loses nothing: one that does hides it."""
    machine = ONE_CPU.with_epml(faults=("stay-armed",))
    transcript = _run(machine, tmp_path, module_steps.insmod(), _cases("straddling", "others"))
    assert module_steps.failed(transcript, PROGRAM) == ["others"]
    assert "is another's" in _complaint(transcript, "others")


@pytest.mark.long("a boot for a mistake of the model, not of the module")
def test_another_model_is_refused(tmp_path: Path) -> None:
    machine = ONE_CPU.with_epml(faults=("other-version",))
    transcript = _run(
        machine,
        tmp_path,
        module_steps.insmod(),
        Step("dmesg", "dmesg"),
        _cases("straddling"),
        Step("untouched", "! grep trapless_epml /proc/interrupts"),
    )
    assert "EPML of version 2, not 1" in transcript["dmesg"].output
    assert "Operation not supported" in _complaint(transcript, "straddling")
    assert epml.counts(tmp_path).commands == 0


@pytest.mark.long("every scenario, the slow ones too: half an hour")
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("target", ["own", "other"])
def test_nothing_is_missed_in_any_scenario(tmp_path: Path, target: str) -> None:
    machine = TWO_CPUS.with_epml().with_disk()
    steps = [oracle.SWAP, oracle.PREPARE, module_steps.insmod(), _oracle(f"--target {target}", 2400)]
    transcript = _run(machine, tmp_path, *steps, module_steps.rmmod())
    assert _judged(transcript) >= {(scenario, target) for scenario in SCENARIOS}
