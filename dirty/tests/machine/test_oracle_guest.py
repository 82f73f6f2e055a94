# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The oracle on the stock kernel: soft-dirty, and from Linux 6.7 on asynchronous write protection."""

import subprocess
from pathlib import Path

import pytest

import oracle_steps as oracle
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import Tree, program
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.releases import ASYNC_WRITE_PROTECTION, INSTALLED

pytestmark = pytest.mark.machine

NEWER = {"uffd-async"}
HAS_NEWER = INSTALLED in ASYNC_WRITE_PROTECTION
BACKENDS = {"soft-dirty", "uffd-sync", "mprotect"} | (NEWER if HAS_NEWER else set())
# A newer kernel's, and those of a module that is not loaded.
REJECTED = {"dbit", "spml", "epml"} | (set() if HAS_NEWER else NEWER)
# These take minutes under emulation: only for the back end that no other kernel here has.
LARGE = ("alternate-pages", "sparse")
SLOW = ("racing-watch", "many-ranges", "many-mappings")
LONG = ("racing-writers", *SLOW)
# Of the back ends that make check holds against every scenario on its own kernel: where kernels differ.
FEW = ("one-writer", "huge", "munmap-refault", "mremap", "fork", "swap")
# Of these, where a write reaches a back end by another way than a fault on memory that stays where it is.
OTHERS = ("huge", "mremap", "fork", "swap")
# Of soft-dirty's, in make check: what discards, moves and shares memory, and what writes it from outside.
OWN = (
    *FEW,
    *("dontneed", "dontneed-huge", "free", "outside-writev", "outside-mem", "read"),
)
# What a tracker of its own process does not see, or does otherwise in another one.
OTHER = (*FEW, "documented-loop", "racing-writers", "exec", "exit")


def _run(*steps: Step, files: Tree | None = None) -> Transcript:
    """Run the oracle on two processors, with swap."""
    tree = oracle.files() if files is None else files
    return runner.run(MACHINES["bare-smp"], [oracle.SWAP, *steps], files=tree, modules=("zram",))


def _chosen(backends: set[str]) -> str:
    return " ".join(f"--backend {name}" for name in sorted(backends))


def test_nothing_is_missed_on_the_stock_kernel() -> None:
    steps = {
        "own": f"--backend soft-dirty --target own {oracle.only(OWN)}",
        "other": f"--backend soft-dirty --target other {oracle.only(OTHER)}",
        "others": f"{_chosen(BACKENDS - {'soft-dirty'})} --target own {oracle.only(OTHERS)}",
        "property": "property --cases 4",
    }
    transcript = _run(*(oracle.step(name, arguments, timeout_s=1800) for name, arguments in steps.items()))
    reports = {name: oracle.report(transcript, name) for name in steps}
    assert {row["backend"] for row in reports["property"]["rejected"]} == REJECTED
    assert {row["backend"] for row in reports["property"]["rows"]} == BACKENDS
    assert oracle.judged(reports["other"]) == {(name, "other") for name in OTHER}
    for name, report in reports.items():
        assert oracle.bad(report) == [], name
        swapped = [row["verdict"] for row in report["rows"] if row["scenario"] == "swap"]
        assert all("done" in verdict for verdict in swapped), swapped
    assert transcript.kernel_warnings() == []


@pytest.mark.long("all scenarios of three back ends; make check has those in which kernels differ")
@pytest.mark.timeout(2400)
def test_nothing_is_missed_of_the_own_process() -> None:
    transcript = _run(
        oracle.step("all", f"{_chosen(BACKENDS)} --target own {oracle.without(LARGE + LONG)}", timeout_s=1800)
    )
    report = oracle.report(transcript, "all")
    assert {row["backend"] for row in report["rows"]} == BACKENDS
    assert oracle.bad(report) == []
    assert transcript.kernel_warnings() == []


@pytest.mark.long("all scenarios of another process; make check has a few")
@pytest.mark.timeout(2400)
def test_nothing_is_missed_of_another_process() -> None:
    arguments = f"--backend soft-dirty --target other {oracle.without(LARGE + SLOW)}"
    transcript = _run(oracle.step("other", arguments, timeout_s=1800))
    report = oracle.report(transcript, "other")
    assert {(name, "other") for name in OTHER} <= oracle.judged(report)
    assert oracle.bad(report) == []
    assert transcript.kernel_warnings() == []


@pytest.mark.long("gigabytes of memory: no kernel differs in it, and the host's tests hold it")
@pytest.mark.timeout(2400)
def test_large_memory_on_the_stock_kernel() -> None:
    arguments = f"--backend soft-dirty --target own {oracle.only(LARGE + LONG)}"
    transcript = runner.run(
        MACHINES["bare-smp"], [oracle.step("large", arguments, timeout_s=1600)], files=oracle.files()
    )
    report = oracle.report(transcript, "large")
    assert len(report["rows"]) == len(LARGE + LONG) and oracle.bad(report) == []


# Scenarios that must catch each mistake, here of soft-dirty: the controls that need this kernel. The race,
# which an emulated machine is too slow to lose in racing-writers, is among libdirty's own tests below.
CONTROLS = {
    "libdirty-rearm": ("one-writer", "straddle", "huge", "read", "munmap-refault", "mremap", "fork", "swap"),
    "libdirty-discard": ("dontneed", "dontneed-block", "dontneed-huge"),
}


@pytest.mark.long("a boot for controls; make check has two in libdirty's own tests, and others on the host")
def test_mistakes_of_soft_dirty_are_caught() -> None:
    steps = [
        oracle.step(mistake, f"--backend soft-dirty {oracle.only(names)}", timeout_s=600, mistake=mistake)
        for mistake, names in CONTROLS.items()
    ]
    transcript = _run(*steps, files=oracle.mutant_files())
    for mistake, names in CONTROLS.items():
        report = oracle.report(transcript, mistake)
        caught = {(row["scenario"], row["target"]) for row in oracle.bad(report)}
        assert caught == {(name, target) for name in names for target in ("own", "other")}, mistake


# What of libdirty's own tests must fail with each mistake.
DIRECT = {
    "libdirty-race": "writers_on_four_threads_lose_nothing",
    "libdirty-discard": "reports_discards",
}


def test_soft_dirty_directly(tmp_path: Path) -> None:
    built, tests = artifacts.mutant("dirty", "rust", "tests/soft_dirty"), tmp_path / "soft_dirty"
    # Small enough for an initramfs.
    subprocess.run(["strip", "-o", tests, built], check=True)
    run = f"{tests.name} --test-threads=1"
    steps = [Step("tests", f"NEED_SOFT_DIRTY=1 {run}", timeout_s=400, expect=None)]
    for mistake, test in DIRECT.items():
        command = f"NEED_SOFT_DIRTY=1 DIRTY_MUTANT={mistake} {run} --exact {test}"
        steps.append(Step(mistake, command, timeout_s=400, expect=None))
    transcript = runner.run(MACHINES["bare-smp"], steps, files=program(tests))
    assert " 0 failed" in transcript["tests"].output, transcript["tests"].output
    for mistake in DIRECT:
        assert "FAILED. 0 passed; 1 failed" in transcript[mistake].output, transcript[mistake].output
