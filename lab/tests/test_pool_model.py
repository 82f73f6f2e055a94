# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The model of the pool over a day: the module's compiled policy, and days with known results."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trapless_lab import artifacts
from trapless_lab.pagetable import policy
from trapless_lab.pagetable.experiments import shrinking as pagetable_shrinking
from trapless_lab.pagetable.policy import Decider, Kind, Policy
from trapless_lab.pagetable.pool_model import PAGES, PREFILL, TICK_S, Outcome, Run, Workload, simulate
from trapless_lab.pagetable.table_spans import LEVELS, TableSpan

PTE, PGD = LEVELS.index("pte"), LEVELS.index("pgd")
FILLED = sum(n * size for n, size in zip(PREFILL, PAGES, strict=True))
NONE = Policy(Kind.NONE, 180, 100)


def together(made: int, level: int = PTE, seconds: float = 1.0) -> Workload:
    """Allocate so many tables, one after another, then free all."""
    what = [(level, True)] * made + [(level, False)] * made
    return Workload("together", seconds, [(i + 0.5) / len(what) for i in range(len(what))], what)


def one_by_one(count: int) -> Workload:
    what = [(PTE, True), (PTE, False)] * count
    return Workload("one by one", 1.0, [(i + 0.5) / len(what) for i in range(len(what))], what)


def modelled(*workloads: Workload, by: Policy = NONE, apart: int = TICK_S, seconds: int = 600) -> Outcome:
    runs = [Run(1 + i * apart, workload.seconds, workload) for i, workload in enumerate(workloads)]
    return simulate(runs, seconds, by)


def test_the_structures_are_those_of_the_module() -> None:
    header = (artifacts.POLICY / "policy.h").read_text()
    for structure, name in ((Policy, "tpt_policy"), (policy.Demand, "tpt_demand")):
        (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", header, re.MULTILINE | re.DOTALL)
        assert re.findall(r"(\w+);", body) == [field[0] for field in structure._fields_]
    kinds = re.findall(r"^\tTPT_POLICY_(\w+),", header, re.MULTILINE)
    assert kinds == [kind.name for kind in Kind]
    decider = Decider(Policy(Kind.NUMBER, 10, 100), [12, 7])
    # The module's own start reads the first field of each level and writes the last.
    assert all(level.need == level.cached << 8 for level in decider.levels)
    for level in decider.levels:
        level.lowest = level.cached
    assert sum(decider.tick()) == 19 - 10


def test_cached_tables_are_enough() -> None:
    found = modelled(together(PREFILL[PTE]))
    assert (sum(found.asked), found.hit_percent) == (PREFILL[PTE], 100)
    assert set(found.held) == {FILLED + 2}  # the reserve


def test_after_misses_the_kernel_serves_and_the_pool_grows() -> None:
    more = PREFILL[PTE] + 10
    first = modelled(together(more, seconds=1e-3))
    assert sum(first.asked) - sum(first.hits) == 10
    twice = modelled(together(more, seconds=1e-3), together(more, seconds=1e-3))
    assert sum(twice.asked) - sum(twice.hits) == 10
    assert twice.held[-1] >= FILLED + 10


def test_both_top_tables_are_freed_together() -> None:
    found = modelled(together(PREFILL[PGD] + 1, PGD, seconds=1e-3))
    assert sum(found.asked) - sum(found.hits) == 1


def test_tables_that_are_not_freed_are_freed_at_the_end() -> None:
    lost = Workload("lost", 1.0, [0.1, 0.2], [(PTE, True), (PTE, True)])
    assert modelled(lost).cached[-1] == FILLED


def test_shrinking_costs_hits_and_saves_pages() -> None:
    """The control: with a threshold of 0 every burst misses, which the numbers show."""
    bursts = [together(60, seconds=0.01)] * 20
    never = modelled(*bursts)
    always = modelled(*bursts, by=Policy(Kind.NUMBER, 0, 100))
    assert never.hit_percent == 100 and not never.given_back
    assert always.hit_percent < 90 and always.shrinks >= 20
    assert always.mean_held < never.mean_held / 2


def test_an_idle_pool_shrinks_adaptively_and_a_busy_one_does_not_miss() -> None:
    adaptive = Policy(Kind.ADAPTIVE, 180, 100)
    idle = modelled(one_by_one(1), by=adaptive, seconds=4 * 3600)
    assert idle.held[-1] < FILLED / 2 and idle.hit_percent == 100
    busy = modelled(*([together(60, seconds=0.01)] * 59), by=adaptive)
    assert busy.hit_percent > 99


events = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60)


@given(
    st.lists(events, min_size=1, max_size=4), st.sampled_from(Kind), st.integers(0, 200), st.integers(0, 400)
)
@settings(max_examples=40)
def test_no_table_is_lost(days: list[list[tuple[int, bool]]], kind: Kind, number: int, percent: int) -> None:
    """For all allocations and frees the pool holds its first tables plus growth minus those given back."""
    workloads = [Workload("x", 5.0, [i / (len(day) + 1) for i in range(len(day))], day) for day in days]
    found = modelled(*workloads, by=Policy(kind, number, percent), apart=3, seconds=100)
    assert sum(found.asked) == sum(made for day in days for _, made in day)
    assert all(0 <= cached <= held for cached, held in zip(found.cached, found.held, strict=True))
    assert found.cached[-1] == found.held[-1]  # all workloads are over
    assert (kind == Kind.NONE) <= (found.given_back == 0)


def test_a_workload_has_the_recorded_events() -> None:
    def table(level: str, direction: str, at: int) -> TableSpan:
        return TableSpan(level, direction, at, 1, 1, 1, False)  # type: ignore[arg-type]

    seen = [table("pgd", "allocate", 100), table("user_pgd", "allocate", 101), table("pte", "free", 150)]
    found = Workload.of("x", 2.0, [*seen, table("pte", "free", 200)], 100, 200)
    assert (found.when, found.what) == ([0.0, 0.5], [(PGD, True), (PTE, False)])
    assert list(Run(10, 4, found).events(11, 14)) == [(12, PTE, False)]


# The experiment


def outcome(hits: Sequence[int], held: int) -> Outcome:
    return Outcome([held] * len(hits), [held] * len(hits), list(hits), [1000] * len(hits))


def test_the_best_fixed_policy_hits_as_often() -> None:
    found = {
        "none": outcome([1000, 1000], 300),
        "adaptive": outcome([998, 998], 100),
        "number 40": outcome([900, 900], 40),
        "number 180": outcome([998, 999], 180),
        "number 250": outcome([1000, 999], 250),
    }
    assert pagetable_shrinking.best_fixed(found) == "number 180"
    assert pagetable_shrinking.best_fixed({**found, "adaptive": outcome([1000, 1000], 100)}) is None


@pytest.mark.parametrize("shorter", [1, pagetable_shrinking.QUICK_SHORTER])
def test_a_day_has_all_its_hours(shorter: int) -> None:
    workloads = {name: one_by_one(1) for name in pagetable_shrinking.RECORDED}
    runs, seconds = pagetable_shrinking.day(workloads, shorter)
    assert seconds == 24 * 3600 // shorter
    assert runs[0].at == 0 and seconds - 60 <= runs[-1].at < seconds
    assert runs == sorted(runs, key=lambda run: run.at)


def test_the_modules_defaults() -> None:
    """The model's defaults are the module's."""
    text = (artifacts.POLICY / "pool.c").read_text()
    assert f"prefill[TPT_LEVELS] = {{ {', '.join(map(str, PREFILL))} }}" in text
    assert f"({TICK_S} * HZ)" in text
    number, percent = pagetable_shrinking.DEFAULTS["number"], pagetable_shrinking.DEFAULTS["percent"]
    assert f".number = {number}, .percent = {percent}" in text
