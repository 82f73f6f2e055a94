# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Mutants of the guest module (dirty/tests/mutants), each with one mistake: the tests must see it."""

import pytest

import module_steps
import oracle_steps as oracle
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.transcript import Transcript

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("a boot for controls; make check has two of the module's on Linux 6.12"),
]

# Of the cases of dirtykeep, those that must fail; no other may but those of EITHER_WAY. Without a flush all
# is a race: a processor may keep an entry for any time. Without the notifier, whether a page is found that
# was swapped out after the watch depends on when the kernel writes it.
CASES = {
    "module-no-flush": {"many-trackers"},
    "module-no-notifier": set[str](),
    "module-no-kernel-writes": {"ptrace-poke", "direct-io"},
    "module-no-transfer": {"swap-after-collect", "swap-after-watch", "lazy-free"},
    "module-one-tracker": {"two-trackers", "many-trackers", "racing-trackers"},
}
EITHER_WAY = {
    "module-no-flush": set(module_steps.names_of("dirtykeep")) - CASES["module-no-flush"],
    "module-no-notifier": {"swap-after-watch"},
}
# Of the oracle's scenarios, all must fail.
SCENARIOS = {
    "module-no-notifier": (
        "dontneed",
        "dontneed-huge",
        "free",
        "mremap",
        "munmap-refault",
        "swap",
        "write-back",
    ),
    "module-no-kernel-writes": ("outside-writev", "outside-mem"),
    "module-one-tracker": ("trackers",),
}
UNKNOWN = "module-unknown-symbol"
# The case whose process the kernel kills where the module should have returned ENOMEM.
KILLING, KILLED = "module-oom-killer", "pieces-in-a-cgroup"


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    """One boot, in which one mutant follows the other."""
    steps = []
    for mutant in CASES:
        arguments = f"--backend dbit --target own {oracle.only(SCENARIOS.get(mutant, ('one-writer',)))}"
        steps += [
            module_steps.insmod(mutant),
            module_steps.cases("dirtykeep", f"cases {mutant}"),
            oracle.step(f"oracle {mutant}", arguments, timeout_s=300),
            module_steps.released(f"released {mutant}"),
            module_steps.rmmod(f"rmmod {mutant}"),
        ]
    steps += [
        module_steps.insmod(KILLING),
        module_steps.cases("dirtylimit", KILLING, only=KILLED),
        module_steps.released(f"released {KILLING}"),
        module_steps.rmmod(f"rmmod {KILLING}"),
    ]
    return runner.run(
        MACHINES["bare-smp"].with_disk(),
        [module_steps.SWAP, *steps, module_steps.insmod(UNKNOWN, expect=None)],
        files={**module_steps.module_files(*CASES, KILLING, UNKNOWN), **oracle.files()},
        modules=("ahci", "sd_mod"),
    )


@pytest.mark.parametrize("mutant", CASES)
def test_cases_catch(transcript: Transcript, mutant: str) -> None:
    failed = set(module_steps.failed(transcript, f"cases {mutant}"))
    passed = set(module_steps.passed(transcript, f"cases {mutant}"))
    assert failed | passed == set(module_steps.names_of("dirtykeep"))
    assert failed - EITHER_WAY.get(mutant, set()) == CASES[mutant]


@pytest.mark.parametrize("mutant", SCENARIOS)
def test_scenarios_catch(transcript: Transcript, mutant: str) -> None:
    found = oracle.report(transcript, f"oracle {mutant}")
    caught = {row["scenario"] for row in oracle.bad(found)}
    assert caught == set(SCENARIOS[mutant]), oracle.skipped(found)


def test_the_library_refuses_a_module_that_does_not_flush(transcript: Transcript) -> None:
    """It tries each back end on a page of its own first."""
    found = oracle.report(transcript, "oracle module-no-flush")
    assert found["rows"] == [] and [row["backend"] for row in found["rejected"]] == ["dbit"]


def test_a_module_that_has_its_user_killed_is_caught(transcript: Transcript) -> None:
    assert f"FAILED {KILLED} (wait status 0x9)" in transcript[KILLING].output


def test_an_unknown_kernel_is_refused(transcript: Transcript) -> None:
    step = transcript[f"insmod {UNKNOWN}"]
    assert step.rc != 0
    assert "unknown kernel: no symbol trapless_no_such_symbol" in step.output


def test_no_mutant_harms_the_kernel(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
