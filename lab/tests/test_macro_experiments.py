# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The experiments on computation, I/O, bare metal and IOTLB latency, on recorded and on forged output."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import replay
from trapless_lab import artifacts, host
from trapless_lab.errors import LabError
from trapless_lab.experiment import workload
from trapless_lab.experiment.experiment import Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.trace import TICK, Bucket, Counts
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable import states
from trapless_lab.pagetable.experiments import bare as pagetable_bare
from trapless_lab.pagetable.experiments import compute as pagetable_compute
from trapless_lab.pagetable.experiments import io as pagetable_io
from trapless_lab.pagetable.experiments import iotlb_model as pagetable_iotlb_model


@pytest.fixture(autouse=True)
def _unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use empty files instead of products that are not built or installed: nothing is booted."""
    monkeypatch.setattr(artifacts, "_built", lambda path, _how: path)
    monkeypatch.setattr(host, "tool", lambda name, _package: Path("/bin/sh"))


def result(text: str) -> StepResult:
    return StepResult(Step("x", ""), text.encode(), 0, 0.0)


def _checks(found: Result) -> dict[str, bool]:
    return {check.name: check.holds for check in found.checks}


# What a command costs


def test_the_idle_loop_is_not_counted() -> None:
    assert workload.instructions_on(result("out\nsoaked ns=1000 idle=120\n")) == 380


@pytest.mark.parametrize("text", ["", "soaked ns=1 idle=1\nsoaked ns=1 idle=1\n"])
def test_there_must_be_one_record(text: str) -> None:
    with pytest.raises(LabError, match="records of soaked"):
        workload.instructions_on(result(text))


# States


def test_states_follow_each_other_in_one_boot() -> None:
    names = [step.name for step in states.steps([Step("a", "")])]
    loads = [step.name for step in pagetable.load_steps(pagetable.PIBOOSTER_ALONE)]
    assert names == ["stock: a", *loads, "piboost: a", "everything on", "boosted: a"]


def test_a_state_that_is_not_measured_is_still_reached() -> None:
    names = [step.name for step in states.steps([Step("a", "")], ("stock", "boosted"))]
    assert "piboost: a" not in names and pagetable.LOAD_MODULE in names


def test_percents_are_against_stock() -> None:
    assert states.percents({"stock": 200, "piboost": 199, "boosted": 202}) == {
        "piboost_percent": -0.5,
        "boosted_percent": 1.0,
    }


# The model


def test_share_is_of_the_time_with_flushes() -> None:
    cost = pagetable_iotlb_model.Cost(flushes=10, instructions=5000)
    assert cost.share_percent(1.0, 2.0) == 50
    assert cost.share_percent(0.25, 2.0) == 20
    assert replace(cost, flushes=0).share_percent(2.0) == 0


def _ticks(*flushes: int) -> Transcript:
    """Return a run of one step in which so many flushes followed each tick."""
    step = Step("stock: fork_exit", "")
    buckets = [Bucket("", None, Counts(pages=99)), Bucket("begin", 0, Counts(pages=77))]
    buckets += [Bucket(TICK, 0, Counts(pages=count)) for count in flushes]
    buckets.append(Bucket("end", None, Counts(pages=55)))
    done = StepResult(step, b"fork_exit ns=2000 n=10\n", 0, 0.0)
    return Transcript(MACHINES["xen-strict"], (done,), tuple(buckets), "")


def test_flushes_are_those_between_ticks() -> None:
    cost = pagetable_iotlb_model.cost(_ticks(45, 55, 1000), "stock: fork_exit", "fork_exit")
    assert cost == pagetable_iotlb_model.Cost(10, 1000)


def test_one_tick_is_too_few() -> None:
    with pytest.raises(LabError, match="fewer than two ticks"):
        pagetable_iotlb_model.cost(_ticks(45), "stock: fork_exit", "fork_exit")


# Network


def test_the_receiver_reports_the_throughput() -> None:
    text = (
        "[  5] 0.00-0.4 sec 32 MBytes 788681 Kbits/sec 0 sender\n[  5] 0-1 sec 780835 Kbits/sec  receiver\n"
    )
    assert pagetable_io.mbps(result(text)) == 780.835
    with pytest.raises(LabError, match="has 0 throughputs"):
        pagetable_io.mbps(result("iperf3: error\n"))


# Recorded runs, and failing ones


def _slower(step: str, factor: float) -> replay.Forge:
    def forge(name: str, output: str) -> str:
        if not name.startswith(step):
            return output
        return re.sub(r"(?m)(?<=ns=)(\d+)", lambda m: str(int(int(m[1]) * factor)), output)

    return forge


def test_compute() -> None:
    found = pagetable_compute.pagetable_compute(replay.quick("pagetable-compute", plots=(album := Album())))
    assert found.holds
    assert album.drawn["pagetable-compute.png"]
    assert set(found.keys) == set(states.STATES)


def test_a_computation_that_is_harmed_fails() -> None:
    context = replay.quick("pagetable-compute", _slower("piboost: queens", 1.03))
    checks = _checks(pagetable_compute.pagetable_compute(context))
    assert checks == {"piboost computes no slower": False, "boosted computes no slower": True}


def test_io() -> None:
    found = pagetable_io.pagetable_io(replay.quick("pagetable-io", plots=Album()))
    assert found.holds
    assert len(found.rows) == 5


def test_a_disk_that_is_harmed_fails() -> None:
    context = replay.quick("pagetable-io", _slower("boosted: disk read", 1.2))
    assert _checks(pagetable_io.pagetable_io(context))["boosted is no worse"] is False


def test_a_network_that_is_harmed_fails() -> None:
    def forge(name: str, output: str) -> str:
        if not name.startswith("boosted: network 1"):
            return output
        return re.sub(r"([\d.]+) Kbits/sec(?= +receiver)", "1000 Kbits/sec", output)

    checks = _checks(pagetable_io.pagetable_io(replay.quick("pagetable-io", forge)))
    assert checks["boosted is no worse"] is False


def test_bare_metal_may_become_slower() -> None:
    context = replay.quick("pagetable-bare", _slower("cached: ", 2))
    assert pagetable_bare.pagetable_bare(context).holds


def test_bare_metal_that_drifts_fails() -> None:
    context = replay.quick("pagetable-bare", _slower("stock_again: ", 1.1))
    assert _checks(pagetable_bare.pagetable_bare(context))["stock is stock again"] is False


def test_a_cache_that_does_not_serve_fails() -> None:
    def forge(name: str, output: str) -> str:
        return re.sub(r"pud/hits:\d+", "pud/hits:0", output) if name == "pool" else output

    checks = _checks(pagetable_bare.pagetable_bare(replay.quick("pagetable-bare", forge)))
    assert checks["the cache served"] is False
