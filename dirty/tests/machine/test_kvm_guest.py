# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A tracked process runs a virtual machine whose guest writes its memory: stock kvm_amd, in the emulator.

The witness is memory itself. Every back end that the machine's kernel has is judged; the module, which cannot
see such writes, must refuse the memory or report all of it, and a module that ignores this must be caught.
"""

import pytest

import module_steps
import oracle_steps as oracle
from trapless_lab.machines import nested, runner
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

CONTROL = "module-no-secondary"
SCENARIO = oracle.only(["guest"])
MODULE = "dbit"
# By whom each is tracked. mprotect knows its own process only.
OTHERS = {
    ("soft-dirty", "own"),
    ("soft-dirty", "other"),
    ("uffd-sync", "own"),
    ("uffd-sync", "other"),
    ("mprotect", "own"),
}


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    """One boot: the module as it was, the module, all other back ends."""
    others = " ".join(f"--backend {name}" for name in sorted({name for name, _ in OTHERS}))
    return runner.run(
        nested.machine(),
        [
            module_steps.insmod(CONTROL),
            oracle.step(CONTROL, f"--backend {MODULE} {SCENARIO}", 300),
            module_steps.cases("dirtymapped", f"cases {CONTROL}"),
            module_steps.released(f"released {CONTROL}"),
            module_steps.rmmod(f"rmmod {CONTROL}"),
            module_steps.insmod(),
            oracle.step(MODULE, f"--backend {MODULE} {SCENARIO}", 300),
            module_steps.cases("dirtymapped", "cases"),
            module_steps.released("released"),
            module_steps.rmmod(),
            oracle.step("others", f"{others} {SCENARIO}", 300),
        ],
        files={**module_steps.module_files(CONTROL), **oracle.files()},
        modules=nested.OUTER_MODULES,
    )


def test_nothing_is_missed_by_the_module(transcript: Transcript) -> None:
    found = oracle.report(transcript, MODULE)
    assert oracle.bad(found) == []
    assert oracle.judged(found) == {("guest", "own"), ("guest", "other")}, found


def test_the_module_refuses_or_reports_all(transcript: Transcript) -> None:
    assert module_steps.failed(transcript, "cases") == [], transcript["cases"].output
    assert module_steps.passed(transcript, "cases") == module_steps.names_of("dirtymapped")


def test_a_module_that_ignores_it_is_caught(transcript: Transcript) -> None:
    caught = {(row["scenario"], row["target"]) for row in oracle.bad(oracle.report(transcript, CONTROL))}
    assert caught == {("guest", "own"), ("guest", "other")}
    assert module_steps.failed(transcript, f"cases {CONTROL}") == ["before", "after", "between"]


def test_nothing_is_missed_by_any_other_back_end(transcript: Transcript) -> None:
    found = oracle.report(transcript, "others")
    assert oracle.bad(found) == []
    done = {(row["backend"], row["target"]) for row in found["rows"] if "done" in row["verdict"]}
    assert done == OTHERS, oracle.skipped(found)


def test_no_kernel_complains(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
