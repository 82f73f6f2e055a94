# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest module held against memory itself: the oracle's scenarios by dirty bits, on one CPU and two."""

from collections.abc import Mapping

import pytest

import module_steps
import oracle_steps as oracle
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.transcript import Transcript
from trapless_lab.releases import Linux

pytestmark = pytest.mark.machine

# These take half of the time under emulation: for make check-long.
LONG = ("racing-watch", "many-ranges", "many-mappings", "map-over", "sparse", "alternate-pages")
RACE = "racing-writers"
# What a tracker sees differently in another process: the others are for make check-long.
OTHER = (
    *("swap", "huge", "hugetlb", "merged", "direct", "trackers", "outside-writev", "write-back"),
    *("exec", "exit", "documented-loop", RACE),
)
# Where series of the kernel differ: fork, writeback, tables that go away, who holds pages.
LATER = ("fork", "write-back", "swap", "huge", "dontneed-huge", "merged", "pinned", "direct", "one-writer")
# Of these, where make check tests the rest on another build of the same source.
BRIEF = ("fork", "write-back", "swap", "one-writer")
# What one CPU does otherwise than two: no flush of another's TLB, and each race is one with the scheduler.
ONE_CPU = ("one-writer", "huge", "dontneed-huge", "swap", "merged", "pinned", "trackers", "noise", "fork")


# Mistakes that only the module for later kernels can make, each with the scenario that must show it.
LATER_MISTAKES = {"module-no-saved-dirty": "fork", "module-writeback-silent": "write-back"}


def _run(
    machine: Machine, timeout_s: float, steps: dict[str, str], mutants: Mapping[str, str] | None = None
) -> Transcript:
    """Run the oracle by dirty bits with these arguments, each under its name; then mutants by one."""
    mutants = mutants or {}
    mutated = [
        step
        for mutant, scenario in mutants.items()
        for step in (
            module_steps.insmod(mutant),
            oracle.step(mutant, f"--backend dbit --target own --scenario {scenario}", timeout_s),
            module_steps.rmmod(f"rmmod {mutant}"),
        )
    ]
    return runner.run(
        machine.with_disk(),
        [
            oracle.SWAP,
            oracle.PREPARE,
            module_steps.insmod(),
            *(
                oracle.step(name, f"--backend dbit {arguments}", timeout_s)
                for name, arguments in steps.items()
            ),
            module_steps.rmmod(),
            *mutated,
        ],
        files={**module_steps.module_files(*mutants, linux=machine.linux), **oracle.files()},
        modules=("zram", *oracle.DISK_MODULES),
    )


def _check(transcript: Transcript, name: str) -> set[tuple[str, str]]:
    """Nothing was missed, and only what may be skipped was; return what was judged."""
    found = oracle.report(transcript, name)
    assert found["rows"] and found["rejected"] == []
    assert oracle.bad(found) == []
    skipped = oracle.skipped(found)
    assert skipped.keys() <= oracle.EXPECTED_SKIPS, skipped
    assert transcript.kernel_warnings() == []
    return oracle.judged(found)


def test_nothing_is_missed_on_two_cpus() -> None:
    steps = {
        "own": f"--target own {oracle.without((*LONG, RACE))}",
        "other": f"--target other {oracle.only(OTHER)}",
    }
    transcript = _run(MACHINES["bare-smp"], 600, steps)
    own = _check(transcript, "own")
    for name in ("swap", "huge", "hugetlb", "merged", "direct", "trackers", "write-back", "fork-tracker"):
        assert (name, "own") in own
    assert _check(transcript, "other") == {(name, "other") for name in OTHER}


@pytest.mark.parametrize(
    "linux", ["6.12-deb13", pytest.param("6.12-deb12", marks=pytest.mark.long("the source is 6.12-deb13's"))]
)
def test_nothing_is_missed_on_later_kernels(linux: Linux) -> None:
    """Two CPUs, and the controls."""
    steps = {"own": f"--target own {oracle.only(LATER)}", "other": f"--target other {oracle.only(OTHER)}"}
    transcript = _run(MACHINES["bare-smp"].with_linux(linux), 600, steps, LATER_MISTAKES)
    assert _check(transcript, "own") == {(name, "own") for name in LATER}
    assert _check(transcript, "other") == {(name, "other") for name in OTHER}
    for mistake, scenario in LATER_MISTAKES.items():
        caught = {row["scenario"] for row in oracle.bad(oracle.report(transcript, mistake))}
        assert caught == {scenario}, mistake


@pytest.mark.debian12("another release has no backports of it")
def test_nothing_is_missed_where_only_the_compiler_is_another() -> None:
    """The kernel of Debian 12's backports, which has the source of 6.12-deb13."""
    steps = {"own": f"--target own {oracle.only(BRIEF)}"}
    assert _check(_run(MACHINES["bare-smp"].with_linux("6.12-deb12"), 600, steps), "own") == {
        (name, "own") for name in BRIEF
    }


@pytest.mark.long("make check holds two CPUs, which do all that one does")
def test_nothing_is_missed_on_one_cpu() -> None:
    transcript = _run(MACHINES["bare"], 400, {"all": f"--target own {oracle.only((*ONE_CPU, RACE))}"})
    assert _check(transcript, "all") == {(name, "own") for name in (*ONE_CPU, RACE)}


@pytest.mark.long("every scenario, the slow ones too: half an hour")
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("target", ["own", "other"])
@pytest.mark.parametrize("machine", ["bare", "bare-smp"])
def test_nothing_is_missed_in_any_scenario(machine: str, target: str) -> None:
    transcript = _run(MACHINES[machine], 2400, {"all": f"--target {target}"})
    judged = _check(transcript, "all")
    assert {(name, target) for name in (*LONG, RACE)} <= judged
