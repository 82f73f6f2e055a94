# SPDX-License-Identifier: Apache-2.0 OR MIT
"""domu-latency on forged output: what a real one would look like, and one that must fail."""

from collections.abc import Sequence
from typing import Any

import pytest

from trapless_lab import artifacts
from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.experiment.plots import Album
from trapless_lab.experiment.workload import MODES, NS_PER_INSTRUCTION
from trapless_lab.machines import domu
from trapless_lab.machines.machine import Machine
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import crossings
from trapless_lab.pagetable.crossings import Counted, Counting, Crossings
from trapless_lab.pagetable.experiments import domu_latency, process_latency
from trapless_lab.progress import Progress

COST = {"bare": 160_000, "stock": 660_000, "payload": 420_000, "boosted": 260_000}
ENTRIES = {"bare": 0, "stock": 100, "payload": 101, "boosted": 25}


@pytest.fixture(autouse=True)
def _unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use empty files instead of products that are not built or installed: nothing is booted."""
    monkeypatch.setattr(artifacts, "_built", lambda path, _how: path)
    monkeypatch.setattr(domu, "tree", lambda *_domus: {})


def _counted(step: Step, cost: dict[str, int]) -> Counted:
    column, measure, *_ = step.name.split()
    if column not in cost or measure not in MODES:
        return Counted(StepResult(step, b"", 0, 0.0), {}, 0)
    processes = (
        int(step.command.split()[-1]) if column == "bare" else process_latency.QUICK_PROCESSES[measure]
    )
    record = f"{measure} ns={cost[column] * NS_PER_INSTRUCTION} n=1\n"
    each = Crossings(hypercalls=ENTRIES[column] * processes)
    return Counted(StepResult(step, record.encode(), 0, 0.0), {measure: [each]}, 0)


def forged(monkeypatch: pytest.MonkeyPatch, plots: Album | None = None, **changed: int) -> Result:
    cost = {**COST, **changed}

    def run(
        _context: Context, _label: str, machine: Machine, steps: Sequence[Step], *_: Any, **__: Any
    ) -> Counting:
        found = {step.name: _counted(step, cost) for step in steps}
        results = tuple(counted.result for counted in found.values())
        return Counting(Transcript(machine, results, (), ""), found)

    monkeypatch.setattr(crossings, "run", run)
    return domu_latency.domu_latency(Context(quick=True, progress=Progress(), plots=plots))


def test_domu_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    found = forged(monkeypatch, album := Album())
    assert found.holds
    assert set(album.drawn) == {"domu-latency.png"}
    row = found.rows[0]
    assert (row["bare"], row["payload"], row["boosted"]) == (160_000, 420_000, 260_000)
    assert (row["payload_tax_left_percent"], row["tax_left_percent"]) == (52, 20)
    assert found.keys["xen_entries"]["boosted"]["fork_exit"] == 25
    assert all(target.reached for target in found.targets if "tax" in target.name)


def test_a_payload_that_saves_too_little_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = forged(monkeypatch, payload=600_000)
    assert [check.name for check in found.checks if not check.holds] == ["a domU gains unasked"]


def test_a_slower_domu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = forged(monkeypatch, boosted=700_000)
    assert [check.name for check in found.checks if not check.holds] == ["boosted is not slower"]


def test_a_missed_target_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    found = forged(monkeypatch, boosted=320_000)
    assert found.holds
    assert not all(target.reached for target in found.targets)
