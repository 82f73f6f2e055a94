# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pagetable-latency on the spans of a run."""

from collections.abc import Sequence

import pytest

from trapless_lab.errors import LabError
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments import latency as pagetable_latency
from trapless_lab.pagetable.experiments.latency import Dyn, Enabled
from trapless_lab.pagetable.recording import Recorded
from trapless_lab.pagetable.table_phases import DIRECTIONS, SEEN_BOOSTED, Phase, added, percent_left
from trapless_lab.pagetable.table_spans import LEVELS, Direction, Level, TableSpan
from trapless_lab.plugins.spans import START, STOP, Record


def span(
    level: Level, direction: Direction, instructions: int, at: int = 0, foreign: bool = False, ready: int = 0
) -> TableSpan:
    return TableSpan(level, direction, at, instructions, instructions, ready or instructions, foreign)


def phase(cost: int, foreign: int = 0, start: int = 0, end: int = 100) -> Phase:
    """Every level once in each direction, and so many spans with an interrupt."""
    width = (end - start) // (2 * len(LEVELS) + 1)
    tables = [span(level, d, cost, start + width * i) for i, level in enumerate(LEVELS) for d in DIRECTIONS]
    tables += [span("pte", "allocate", 10**6, start, foreign=True)] * foreign
    return Phase(tables, start, end)


def test_the_papers_levels() -> None:
    tables = [span("pgd", "allocate", 300), span("user_pgd", "allocate", 100), span("pte", "allocate", 90)]
    tables += [span("pmd", "allocate", 5000, ready=120), span("pud", "allocate", 4000, ready=80)]
    tables += [span("pud", "allocate", 10**6, foreign=True)]
    found = Phase(tables, 0, 100)
    assert [found.mean("allocate", level) for level in ("L1", "L2", "L3")] == [300, 100, 90]
    assert found.together("allocate") == 490
    assert found.foreign() == pytest.approx(1 / 6)
    with pytest.raises(LabError, match="no free of L1"):
        found.together("free")


def test_a_curve_has_gaps_without_spans() -> None:
    found = Phase([span("pte", "free", 10, 5), span("pte", "free", 30, 95)], 0, 100)
    curve = found.curve(4)
    assert curve["L3 free"] == [10, None, None, 30]
    assert pagetable_latency._points([1, 2, 3, 4], curve["L3 free"]) == ([1, 4], [10, 30])


def test_the_cost_of_a_miss() -> None:
    assert added(phase(1000), phase(1015), "allocate") == dict.fromkeys(SEEN_BOOSTED, 15)
    assert percent_left(phase(1000), phase(400), "free") == 40


def enabled(pre: Phase | None = None, module: int = 1, foreign: int = 0, missing: int = 1015) -> Enabled:
    counted = dict.fromkeys(SEEN_BOOSTED, (module, 1))
    return Enabled(phase(1000, foreign), pre or phase(300), phase(missing), 999, 1, 150, 170, counted)


def dyn(before: int = 1000, after: int = 300) -> Dyn:
    first, last = phase(before, end=100), phase(after, start=100, end=200)
    return Dyn(Phase([*first.tables, *last.tables], 0, 200), 100, 100, 990, 10)


def failed(found: Enabled, run: Dyn) -> list[str]:
    settled = run.phase.part(run.enabled, run.phase.end)
    return [check.name for check in pagetable_latency._checks(found, run, settled) if not check.holds]


def test_a_good_run() -> None:
    assert failed(enabled(), dyn()) == []
    targets = pagetable_latency._targets(enabled(), added(phase(1000), phase(1015), "allocate"))
    assert [target.reached for target in targets] == [True] * 3


@pytest.mark.parametrize(
    ("found", "run", "complaint"),
    [
        (enabled(phase(1001)), dyn(after=1001), "boosted is cheaper"),
        (enabled(), dyn(before=300), "dyn begins as stock"),
        (enabled(), dyn(after=1000), "dyn settles where pre is"),
        (enabled(module=200), dyn(), "the module's counters are the plugin's"),
        (enabled(foreign=1), dyn(), "few spans hold other code's instructions"),
    ],
)
def test_an_invalid_run_is_named(found: Enabled, run: Dyn, complaint: str) -> None:
    assert failed(found, run) == [complaint]


def test_missed_targets_are_named() -> None:
    found = enabled(phase(500))
    targets = pagetable_latency._targets(found, added(phase(1000), phase(1021), "allocate"))
    assert [target.reached for target in targets] == [False] * 3


def recorded(ids: Sequence[int]) -> Recorded:
    records = [Record(at, 0, 0, 0, id, 0) for at, id in enumerate(ids)]
    return Recorded(Transcript(pagetable_latency.MACHINE, (), (), ""), records)


def test_the_workload_spans_the_enabling() -> None:
    good = [START, START, STOP, START, STOP, STOP]
    assert pagetable_latency._dyn_marks(recorded(good)) == (0, 2, 3, 5)
    over_early = [START, START, STOP, STOP, START, STOP]
    with pytest.raises(LabError, match="run it longer"):
        pagetable_latency._dyn_marks(recorded(over_early))
