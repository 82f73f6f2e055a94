# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The records of a run, read from recordings."""

import pytest

from recorded import DATA, step_log
from trapless_lab.errors import LabError
from trapless_lab.experiment import workload
from trapless_lab.machines import trace
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepLog, StepResult
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import flushes


@pytest.fixture
def transcript() -> Transcript:
    with (DATA / "xen-trace.log").open() as lines:
        buckets = trace.parse(lines)
    console = (DATA / "xen-console.log").read_text(errors="replace")
    return Transcript(MACHINES["xen-strict"], tuple(step_log().results), buckets, console)


def test_steps_by_name(transcript: Transcript) -> None:
    assert transcript["failing"].rc == 3
    with pytest.raises(KeyError):
        transcript["no such step"]


def test_counts_of_a_step(transcript: Transcript) -> None:
    # Six processes, and two more: mark's exit, and spawn itself.
    assert transcript.counts("workload") == trace.Counts(pages=114, domain=1)


def test_clean_console_has_no_warnings(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []


@pytest.mark.parametrize(
    "line",
    [
        "[    1.0] WARNING: CPU: 0 PID: 1 at mm/page_alloc.c:5 f+0x1/0x2",
        "[    1.0] BUG: Bad page state in process init  pfn:00001",
        "[    1.0] BUG: unable to handle page fault for address: ffff",
        "[    1.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
        "[    1.0] INFO: task spawn:70 blocked for more than 120 seconds.",
        "(XEN) Assertion 'x' failed at mm.c:1",
        "(XEN) Xen WARN at mm.c:1",
    ],
)
def test_warnings_are_found(line: str) -> None:
    found = Transcript(MACHINES["bare"], (), (), f"fine\n{line}\nfine").kernel_warnings()
    assert found == [line]


def test_missing_microcode_of_an_emulated_processor_is_not_a_warning() -> None:
    remark = (
        "[    0.2] Speculative Return Stack Overflow: WARNING: See https://kernel.org/srso.html for options."
    )
    assert Transcript(MACHINES["bare"], (), (), remark).kernel_warnings() == []


def test_xens_remark_on_a_pvh_dom0_is_not_a_warning() -> None:
    remark = "(XEN) WARNING: PVH is an experimental mode with limited functionality"
    assert Transcript(MACHINES["xen-pvh"], (), (), remark).kernel_warnings() == []
    other = "(XEN) WARNING: SPEC_CTRL is an experimental mode"
    assert Transcript(MACHINES["xen-pvh"], (), (), other).kernel_warnings() == [other]


def test_workload_records(transcript: Transcript) -> None:
    assert workload.ns_per_process(transcript["workload"], "fork_exit") == 1325994
    assert workload.tick_ns(transcript["workload"]) == [2667200, 5295574, 7941384]
    with pytest.raises(LabError, match="no fork_sh"):
        workload.ns_per_process(transcript["workload"], "fork_sh")


def test_series_is_cut_at_ticks(transcript: Transcript) -> None:
    series = flushes.series(
        transcript, workload="workload", report=transcript["workload"], enabled_by="bytes"
    )
    assert series.enabled == 0
    assert [counts.pages for counts in series.buckets] == [58, 18, 18]
    assert series.zero_after() == 3
    assert series.zero_after_ms() == 7.941384


def test_series_refuses_lost_ticks(transcript: Transcript) -> None:
    with pytest.raises(LabError, match="0 ticks but the trace holds 3"):
        flushes.series(transcript, workload="workload", report=transcript["marked"])


def test_a_late_flush_counts() -> None:
    quiet, flush = trace.Counts(), trace.Counts(pages=1)
    buckets = [flush] * 3 + [quiet] * 20 + [flush] + [quiet] * 5
    late = flushes.Series(buckets, range(0, 29_000_000, 1_000_000), enabled=3)
    assert late.zero_after() == 21
    assert late.flushes == flush
    checks = {check.name: check.holds for check in flushes._checks("x", late, 100)}
    assert checks == {"x reaches zero": False, "x stays at zero": False}


def test_pool_sizes() -> None:
    raw = (DATA / "pool-steps.log").read_bytes()
    nonce = raw[2:18].decode()
    log = StepLog([Step(str(i), "") for i in range(6)], nonce)
    log.feed(raw)
    sizes = pagetable.pool_sizes(log.results[-1])
    assert sizes["pte"] == {"cached": 165, "in_use": 10, "hits": 3053, "misses": 12}
    assert set(sizes) == set(pagetable.LEVELS)


def test_pool_sizes_refuse_an_unknown_level() -> None:
    with pytest.raises(KeyError):
        pagetable.pool_sizes(StepResult(Step("pool", ""), b"p5d/cached:1\n", 0, 0.0))
