# SPDX-License-Identifier: Apache-2.0 OR MIT
"""fork-big and toolstack on forged output: what a real one would look like, and one that must fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trapless_lab import artifacts, host
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines import domu
from trapless_lab.machines.machine import Machine
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments import fork_big, toolstack
from trapless_lab.progress import Progress


@dataclass(frozen=True)
class Forged(Context):
    """A context that boots nothing; ``output`` makes a step's from the run's label and the step's name."""

    output: Callable[[str, str], str] = lambda _label, _step: ""

    def run(
        self, label: str, machine: Machine, steps: Sequence[Step], *_args: Any, **_options: Any
    ) -> Transcript:
        results = (StepResult(step, self.output(label, step.name).encode(), 0, 0.0) for step in steps)
        return Transcript(machine, tuple(results), (), "")


@pytest.fixture(autouse=True)
def _unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use empty files instead of products that are not built or installed: nothing is booted."""
    monkeypatch.setattr(artifacts, "_built", lambda path, _how: path)
    monkeypatch.setattr(host, "tool", lambda _name, _package: Path("/bin/sh"))
    monkeypatch.setattr(domu, "tree", lambda *_domus: {})


def forged(output: Callable[[str, str], str], plots: Album | None = None) -> Forged:
    return Forged(quick=True, progress=Progress(), plots=plots, output=output)


def failing(result: Result) -> list[str]:
    return [check.name for check in result.checks if not check.holds]


# fork-big

US_A_MIB = {"bare": 60, "pvh": 61, "stock": 1500, "boosted": 300}


def redis(_label: str, step: str) -> str:
    name, _, size = step.partition(": ")
    if not size.endswith(" MiB"):
        return ""
    mib = int(size.removesuffix(" MiB"))
    us = 500 + US_A_MIB[name] * mib
    return f"resident kib={mib << 10}\nbigfork pages=dirty us={us}\nbigfork pages=clean us={us // 2}\n"


def test_a_fork_is_in_instructions() -> None:
    found = fork_big.parse(StepResult(Step("x", ""), redis("", "stock: 4 MiB").encode(), 0, 0.0))
    assert found.kib == 4096
    assert found.instructions == {"dirty": 6500 * 500, "clean": 3250 * 500}


@pytest.mark.parametrize("missing", ["resident", "pages=clean"])
def test_a_fork_that_was_not_measured_is_an_error(missing: str) -> None:
    said = "".join(line for line in redis("", "stock: 4 MiB").splitlines(True) if missing not in line)
    with pytest.raises(LabError, match="has not measured a fork"):
        fork_big.parse(StepResult(Step("x", ""), said.encode(), 0, 0.0))


def test_fork_big() -> None:
    found = fork_big.fork_big(forged(redis, album := Album()))
    assert found.holds
    assert set(album.drawn) == {"fork-big-dom0.png", "fork-big-domu.png"}
    rows = [row for row in found.rows if row["mib"] != "a GiB"]
    assert len(rows) == 2 * 2 * len(fork_big.QUICK_SIZES)
    assert all(row["bare"] < row["boosted"] < row["stock"] for row in rows)
    assert found.keys["a_gib"]["domU"]["stock"]["dirty"] == pytest.approx(1500 * 1024 * 500, rel=0.001)
    assert {target.reached for target in found.targets} == {False}


def test_a_slower_fork_in_a_domu_fails() -> None:
    def slower(label: str, step: str) -> str:
        said = redis(label, step)
        return said.replace("us=", "us=9") if (label, step) == ("domU", "boosted: 16 MiB") else said

    assert failing(fork_big.fork_big(forged(slower))) == ["boosted in a domU is not slower"]


def test_forks_of_other_memory_are_not_compared() -> None:
    def smaller(label: str, step: str) -> str:
        return redis(label, step).replace("kib=16384", "kib=1638") if label == "pvh" else redis(label, step)

    assert failing(fork_big.fork_big(forged(smaller))) == ["the same memory"]


# toolstack

COSTS = {"create": 90_000_000, "destroy": 30_000_000, "nothing": 60_000_000}


def xl(_label: str, step: str) -> str:
    state, _, rest = step.partition(": ")
    if not rest:
        return ""
    cost = COSTS[rest.split()[0]] // (2 if state == "boosted" else 1)
    return f"soaked ns={2 * cost + 2000} idle=1000\n"


def test_toolstack() -> None:
    found = toolstack.toolstack(forged(xl))
    assert found.holds
    assert found.keys["stock"] == {
        "create": COSTS["create"],
        "destroy": COSTS["destroy"],
        "both": COSTS["create"] + COSTS["destroy"],
        "nothing": COSTS["nothing"] // toolstack.NOTHING_TIMES,
    }
    assert [row["faster_percent"] for row in found.rows] == [50] * 4


def test_a_slower_toolstack_fails() -> None:
    def slower(label: str, step: str) -> str:
        return xl(label, step.replace("boosted: destroy", "stock: create"))

    assert failing(toolstack.toolstack(forged(slower))) == ["boosted is not slower"]
