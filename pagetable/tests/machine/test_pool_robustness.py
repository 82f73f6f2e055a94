# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The pool under adverse conditions: no memory, wrong input, no payload, ballooning.

Two boots; in the second one the guest runs out of memory. Both have -icount, with which waiting for the
policy costs nothing, and a second is as much work on any host.
"""

from dataclasses import replace

import pytest

import control_files
import robustness as r
from control_files import SETTLE, STATE, Outcome
from machines import GUEST, helper_file, insmod, pool_file
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript, complaints
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable import pool_model
from trapless_lab.pagetable.parts import LEVELS, NAME, SYSFS

pytestmark = pytest.mark.machine

FUZZ = list(control_files.inputs(seed=1, count=250))
# What the module is filled with when enabled, level by level.
PREFILL = dict(zip(LEVELS, pool_model.PREFILL, strict=True))
# Between two readings a process may end and free its tables; the shell waits for one.
PROCESS = 16
TICK_S = 10
BATCH = 64
# From a full cache less than a batch is given back, then more than one.
FEWER, FEW = PREFILL["pte"] - 10, PREFILL["pte"] - BATCH - 8
BALLOON_KIB = 256 << 10
NOISE_KIB = 1024

WRITES = "writes"
"""Marks where all processes that begin a step have ended: they can make the pool grow, with a flush."""

# Printed on the console: before it there must be no warning, after it there must be one.
DIRTY = "now tables come back dirty"

PROGRAMS = (
    "spawn fork-exit -n 200",
    "spawn fork-sh -n 20",
    "spawn browser -n 1 --tabs 6 --mib 16",
    "cow --pages 128",
    "cowthreads 10",
    "filemap race 20",
    "pvops",
)


def _write(file: str, value: object) -> str:
    return f"echo {value} >{SYSFS}/{file}"


def _refill() -> str:
    return f"{_write('enabled', 0)} && {_write('enabled', 1)}"


def _policy(kind: str, number: int = 180, percent: int = 100) -> Step:
    """Return a step that lets a policy decide over a pool that was just filled, and prints what is left.

    Some processes live meanwhile, so that there are tables in use for the percentage.
    """
    full = f"{_write('policy', 'none')} && {_refill()} || exit 1; for i in 1 2 3 4; do sleep 1000 & done"
    setting = (
        f"{_write('limit_number', number)}; {_write('limit_percent', percent)}; {_write('policy', kind)}"
    )
    # The tick is deferrable: it waits for the processor to wake.
    wait = f"sleep {2 * TICK_S}; sleep 1; {SETTLE}"
    look = f"{r.SUM}; for l in {' '.join(LEVELS)}; do read -r v <{SYSFS}/$l/in_use; echo $l $v; done"
    return r.step(f"policy {kind} {number} {percent}", f"{full}; {setting}; {wait}; {look}; killall sleep")


def _shrink(name: str, file: str, value: object) -> Step:
    """Return a step that writes to a file and reads the result; no process starts in between."""
    left = r.SUM.replace("echo cached", "echo left")
    # "mark" is a process, too: its tables are back before the first reading.
    marked = f"{SETTLE}; mark {WRITES}; {SETTLE}"
    return r.step(name, f"{marked}; {r.SUM}; {_write(file, value)}; rc=$?; {left}; exit $rc")


@pytest.fixture(scope="module")
def control() -> Transcript:
    """Everything that the control files do, then tables that are verified."""
    load, unload = pagetable.load_steps(), pagetable.unload_steps()
    verified = [r.step(f"verified: {program}", program) for program in PROGRAMS]
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            *load,
            r.step("no policy", f"{_write('policy', 'none')} && {_refill()}"),
            # While every level has plenty, so that the pool does not grow after the mark.
            _shrink("shrink 0", "shrink", 0),
            _shrink("pte/cached 500", "pte/cached", 500),
            _shrink("pte/cached fewer", "pte/cached", FEWER),
            r.step("refill before few", _refill()),
            _shrink("pte/cached few", "pte/cached", FEW),
            r.step("refill", _refill()),
            _shrink("shrink 10", "shrink", 10),
            _shrink("shrink 50%", "shrink", "50%"),
            _shrink("shrink 100%", "shrink", "100%"),
            _policy("none", 0, 0),
            _policy("number", 100),
            _policy("number", 1000),
            _policy("proportion", percent=50),
            _policy("both", 100, 50),
            _policy("both", 100, 10**6),
            _policy("adaptive"),
            r.step("no policy again", f"{_write('policy', 'none')} && {_refill()}"),
            control_files.step("fuzz", FUZZ),
            r.step("enabled again", f"{_write('policy', 'adaptive')}; {_refill()}"),
            r.ballooned("balloon", BALLOON_KIB),
            # Each half without the other.
            r.step("disable", f"{_write('enabled', 0)}; spawn fork-sh -n 5"),
            replace(unload[-1], name="payload goes"),
            r.step(
                "enable without payload",
                f"{_write('enabled', 1)}; rc=$?; cat {SYSFS}/enabled; exit $rc",
                None,
            ),
            r.step(
                "use without payload",
                f"spawn fork-sh -n 5; {_write('shrink', '100%')}; {_write('enabled', 0)}",
            ),
            replace(load[0], name="payload comes"),
            r.step(
                "enable with payload",
                f"{_write('enabled', 1)} && spawn fork-sh -n 5 || exit 1; {SETTLE}; {r.SUM}",
            ),
            replace(unload[0], name="module goes"),
            r.step("use without module", "spawn fork-sh -n 5"),
            insmod(parameters="verify=1", name="verify"),
            *verified,
            r.step("served", f"grep . {SYSFS}/*/hits | sed 's|.*/\\(.*\\)/hits:|\\1 |'"),
            replace(unload[0], name="verified module goes"),
            r.step("part", f"echo '<1>{DIRTY}' >/dev/kmsg"),
            insmod("dirty-table", "verify=1", name="dirty"),
            r.step("verified dirty", "spawn fork-exit -n 2"),
            replace(unload[0], name="dirty module goes"),
            unload[-1],
        ],
        files={**pagetable.files(), **pool_file(), **pool_file("dirty-table")},
    )


@pytest.fixture(scope="module")
def scarce() -> Transcript:
    """No memory for the module, then none for any process."""
    load, unload = pagetable.load_steps(), pagetable.unload_steps()
    revert = f"xen-livepatch revert {NAME}"
    return runner.run(
        replace(MACHINES["xen-strict"].with_icount(), memory_mib=1024),
        [
            load[0],
            insmod("fault_injection"),
            r.step(
                "warm up",
                f"for i in 1 2; do insmod {GUEST}/{NAME}.ko {r.SMALL} && rmmod {NAME} || exit 1; done",
            ),
            r.step("memory before", r.MEMORY),
            r.failing_loads("one fails", "fresh", persist=False),
            r.failing_loads("all fail from one on", "fresh", persist=True),
            r.step("memory after", r.MEMORY),
            insmod(parameters=r.SMALL),
            r.without_growth("growth fails"),
            r.without_enabling("enabling fails"),
            r.step("revert refused", revert, expect=None),
            r.out_of_memory("out of memory"),
            r.step("lives on", f"{r.CROWD}; {r.SUM}"),
            *unload[:-1],
            r.step("remove the test", "rmmod fault_injection"),
            unload[-1],
        ],
        files={**pagetable.files(), **pool_file(), **helper_file("fault_injection")},
    )


def _batches(count: int) -> int:
    return -(-count // BATCH)


# Shrinking on demand


@pytest.mark.parametrize(("name", "given"), [("shrink 10", 10), ("shrink 0", 0)])
def test_shrinks_by_a_number(control: Transcript, name: str, given: int) -> None:
    seen = r.numbers(control[name])
    assert seen["cached"] - seen["left"] == given


def test_shrinks_by_a_percentage(control: Transcript) -> None:
    seen = r.numbers(control["shrink 50%"])
    assert seen["left"] == seen["cached"] // 2
    assert r.numbers(control["shrink 100%"])["left"] == 0


def test_shrinks_one_level(control: Transcript) -> None:
    """To a number; the pool does not grow to reach it."""
    for name, left in (("pte/cached fewer", FEWER), ("pte/cached few", FEW)):
        seen = r.numbers(control[name])
        assert 0 < seen["cached"] - seen["left"] <= PREFILL["pte"] - left
    again = r.numbers(control["pte/cached 500"])
    assert again["left"] == again["cached"]


def _flushes_of_write(control: Transcript, name: str) -> int:
    step = control.index(name)
    [bucket] = [b for b in control.buckets if b.step == step and b.opened_by == WRITES]
    return bucket.counts.domain


def test_one_flush_a_batch(control: Transcript) -> None:
    """By QEMU's count: none if nothing was given back; else one a level, as each gives less than a batch."""
    assert _flushes_of_write(control, "shrink 0") == 0
    assert _flushes_of_write(control, "pte/cached 500") == 0
    assert _flushes_of_write(control, "pte/cached fewer") == 1
    seen = r.numbers(control["pte/cached few"])
    assert _flushes_of_write(control, "pte/cached few") == _batches(seen["cached"] - seen["left"]) > 1
    assert 1 <= _flushes_of_write(control, "shrink 10") <= len(LEVELS)


# Policies

ALL = sum(PREFILL.values())


def _left(control: Transcript, policy: str) -> int:
    return r.numbers(control[f"policy {policy}"])["cached"]


def _in_use(control: Transcript, policy: str) -> int:
    seen = r.numbers(control[f"policy {policy}"])
    return sum(seen[level] for level in LEVELS)


def test_a_policy_that_has_no_excess_leaves_the_pool(control: Transcript) -> None:
    for policy in ("none 0 0", "number 1000 100", "both 100 1000000"):
        assert _left(control, policy) + _in_use(control, policy) >= ALL, policy


def test_number(control: Transcript) -> None:
    assert 100 - PROCESS <= _left(control, "number 100 100") <= 100 + PROCESS


def test_proportion(control: Transcript) -> None:
    """At 50 %: half as many as are in use, and each level's reserve."""
    in_use = _in_use(control, "proportion 180 50")
    assert in_use >= 20
    # At the tick there was one process more, whose tables have been freed since.
    assert in_use // 2 <= _left(control, "proportion 180 50") <= in_use // 2 + 2 * PROCESS


def test_both(control: Transcript) -> None:
    """Only tables above both limits are given back."""
    assert 100 - PROCESS <= _left(control, "both 100 50") <= 100 + PROCESS


def test_adaptive_leaves_what_it_was_filled_with(control: Transcript) -> None:
    """Two ticks after the filling most of it still counts as needed."""
    assert ALL // 2 <= _left(control, "adaptive 180 100") <= ALL + PROCESS


# Input


def _said_by(outcome: Outcome) -> str:
    return f"{outcome.data!r} to {outcome.file}: failed {outcome.failed}, {outcome.state}"


def test_input_is_taken_as_documented_or_refused(control: Transcript) -> None:
    outcomes = control_files.outcomes(control["fuzz"], FUZZ)
    assert len(outcomes) == len(FUZZ)
    before: tuple[str, ...] | None = None
    taken = 0
    for outcome in outcomes:
        said = _said_by(outcome)
        allowed = control_files.accepted(outcome.file, outcome.data)
        assert allowed is not outcome.failed, said
        taken += not outcome.failed
        if outcome.failed:
            assert before is None or outcome.state == before, said
            assert _took(outcome, 0), said
        else:
            _check_effect(outcome, before, said)
        before = outcome.state
    assert 50 < taken < len(FUZZ) - 50


def _check_effect(outcome: Outcome, before: tuple[str, ...] | None, said: str) -> None:
    """Check that an accepted write has changed only what it may change."""
    state = dict(zip(STATE, outcome.state, strict=True))
    text = outcome.data.split(b"\0")[0].strip().decode()
    if outcome.file in state and outcome.file != "enabled":
        assert state[outcome.file] == str(int(text) if text.lstrip("+").isdigit() else text), said
    if outcome.file == "enabled":
        assert state["enabled"] == ("0" if text[0] in "0nNfF" or text[:2].lower() == "of" else "1"), said
    if before is not None:
        others = {name for name in STATE if name not in (outcome.file, "shrunk")}
        assert all(state[name] == dict(zip(STATE, before, strict=True))[name] for name in others), said
    if outcome.file == "shrink":
        asked = -(-outcome.cached_before * int(text[:-1]) // 100) if text.endswith("%") else int(text)
        assert _took(outcome, min(asked, outcome.cached_before)), said
    elif outcome.file not in ("enabled", *control_files.CACHED):
        assert _took(outcome, 0), said


def _took(outcome: Outcome, tables: int) -> bool:
    """Whether so many tables have left the pool, but for those of one process that came to it late.

    On a busy host a process that has ended may give its tables back only between the two counts.
    """
    return tables - PROCESS <= outcome.cached_before - outcome.cached <= tables


def test_the_oracle_of_inputs_can_fail() -> None:
    """Inputs that the document refuses and inputs that it accepts, each with the other's outcome."""
    taken = (("shrink", b"50%\n"), ("shrink", b"12"), ("policy", b"both\n"), ("limit_number", b"4294967295"))
    refused = (("shrink", b"101%"), ("shrink", b"-1"), ("policy", b"bot"), ("limit_percent", b"4294967296"))
    assert all(control_files.accepted(file, data) for file, data in taken)
    assert not any(control_files.accepted(file, data) for file, data in refused)


# Absence, ballooning


def test_enabling_without_the_payload_fails_and_changes_nothing(control: Transcript) -> None:
    assert control["enable without payload"].rc != 0
    assert control["enable without payload"].output.splitlines()[-1] == "0"
    assert r.numbers(control["enable with payload"])["cached"] >= ALL - PROCESS


def test_memory_that_goes_to_xen_and_comes_back(control: Transcript) -> None:
    seen = r.numbers(control["balloon"])
    assert seen["total"] - seen["small"] >= BALLOON_KIB // 2  # or nothing was ballooned
    assert seen["again"] >= seen["total"] - BALLOON_KIB // 16
    assert seen["cached"] > 0


# Freed tables


def test_tables_come_back_zero(control: Transcript) -> None:
    quiet, _, _ = control.console.partition(DIRTY)
    assert quiet != control.console
    assert complaints(quiet) == []
    assert all(r.numbers(control["served"])[level] >= 200 for level in LEVELS)


def test_negative_control_a_dirty_table_is_seen(control: Transcript) -> None:
    _, _, after = control.console.partition(DIRTY)
    assert any("WARNING:" in line for line in complaints(after))
    assert "table came back with entry" in after


# No memory


@pytest.mark.long("every allocation of the module fails once: minutes")
@pytest.mark.parametrize("loads", ["one fails", "all fail from one on"])
def test_a_load_that_gets_no_memory_leaves_nothing(scarce: Transcript, loads: str) -> None:
    """The steps themselves check after each load; this test checks that there was something to check."""
    seen = r.numbers(scarce[loads])
    assert seen["refused"] >= 20
    assert seen["marked"] >= 8  # after the load that got all its memory: the witness does see marks


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_every_place_that_asks_for_memory_was_refused_once(scarce: Transcript) -> None:
    """Sites that only a failing load reaches fail when all allocations from one on fail."""
    seen = r.numbers(scarce["all fail from one on"])
    unfailed = [line for line in scarce["all fail from one on"].output.splitlines() if "+0x" in line]
    assert unfailed == [] and seen["sites"] >= 20


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_failed_loads_leak_nothing(scarce: Transcript) -> None:
    before, after = r.numbers(scarce["memory before"]), r.numbers(scarce["memory after"])
    assert before["MemFree"] - after["MemFree"] <= NOISE_KIB, (before, after)


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_growth_that_gets_no_memory_is_not_fatal(scarce: Transcript) -> None:
    seen = r.numbers(scarce["growth fails"])
    assert seen["failed"] > 0
    assert seen["starved"] <= seen["before"]
    assert seen["fed"] > seen["before"] + 20


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_enabling_that_gets_no_memory(scarce: Transcript) -> None:
    seen = r.numbers(scarce["enabling fails"])
    assert seen["allocations"] > 5
    assert seen["marked"] == 0


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_cached_tables_go_before_processes_do(scarce: Transcript) -> None:
    seen = r.numbers(scarce["out of memory"])
    assert seen["killed"] == 137 and seen["oom_reports"] >= 1
    assert seen["cached"] >= 60
    assert seen["given_back"] > seen["shrunk"]
    assert seen["left"] <= seen["cached"] // 4
    assert r.numbers(scarce["lives on"])["cached"] > 20


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_marks_hold_the_payload(scarce: Transcript) -> None:
    """The control of the last step's revert: while tables are marked, a revert is refused."""
    assert scarce["revert refused"].rc != 0


@pytest.mark.long("every allocation of the module fails once: minutes")
def test_no_kernel_complains(scarce: Transcript) -> None:
    assert scarce.kernel_warnings() == []
