# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pagetable-browser on lives that are made up: samples and flushes, and a run that is none is named."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from trapless_lab.errors import LabError
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.trace import TICK, Bucket, Counts
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments import browser
from trapless_lab.pagetable.experiments.browser import MACHINE, Life
from trapless_lab.pagetable.parts import LEVELS
from trapless_lab.pagetable.samples import Sample

TABS = 2
IDLE = ("left idle", "used again")


def pool(cached: int, in_use: int) -> dict[str, int]:
    """Return the counters when each level has so many tables."""
    each = {"cached": cached, "in_use": in_use}
    return {f"{level}_{counter}": tables for level in LEVELS for counter, tables in each.items()}


def life(flushes: int, *pools: tuple[int, int] | None, events: Sequence[str] = ()) -> Life:
    """Return a life of a sample a second, a few processes and so many flushes each."""
    samples = [
        Sample(at, {"processes": 10 * at, "tasks": 50, **(pool(*held) if held else {})}, flushes if at else 0)
        for at, held in enumerate(pools)
    ]
    named = events or ("ready", "opened", *IDLE, "ready", "opened", "quit")
    times = [(name, 1.0 + at / 10) for at, name in enumerate(named)]
    return Life(samples, [*times, ("ended", 3.0)])


STOCK = life(600, None, None, None, None, None)
PRE = life(0, (10, 10), (10, 30), (5, 30), (30, 5), (10, 5))
GOOD = {"stock": STOCK, "pre": PRE, "dyn": replace(PRE, events=[("enabled", 1.0), *PRE.events])}


def failed(**changed: Life) -> list[str]:
    return [check.name for check in browser.checks({**GOOD, **changed}, TABS) if not check.holds]


def test_a_good_run() -> None:
    assert failed() == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"pre": life(0, *[(9, 9)] * 4, (1, 1), events=("ready", "opened", *IDLE, "quit"))},
            "the browser lived",
        ),
        (
            {"pre": life(0, *[(9, 9)] * 4, (1, 1), events=("ready", "opened", *IDLE, "ready", "opened"))},
            "the browser lived",
        ),
        ({"pre": life(500, *[(9, 9)] * 4, (1, 1))}, "the pool spares flushes"),
        ({"dyn": life(400, *[(9, 9)] * 4, (1, 1))}, "the pool spares flushes"),
        ({"dyn": life(0, *[(9, 9)] * 5)}, "the pool gives back what the browser needed"),
    ],
)
def test_an_invalid_run_is_named(changed: dict[str, Life], complaint: str) -> None:
    assert failed(**changed) == [complaint]


def test_a_quick_run_is_judged_without_the_group_that_it_leaves_out() -> None:
    found = {"stock": STOCK, "pre": PRE}
    assert all(check.holds for check in browser.checks(found, TABS))
    rows = {group: browser.row(group, one) for group, one in found.items()}
    assert [target.name.partition(":")[0] for target in browser.targets(rows)] == ["pre"]


def test_a_stock_that_does_not_flush_is_named() -> None:
    assert "stock flushes" in failed(stock=life(1, None, None, None, None, None))


def test_a_pool_that_flushes_while_nobody_uses_the_browser_is_named() -> None:
    samples = [replace(sample, flushes=at == 2) for at, sample in enumerate(PRE.samples)]
    events = [("left idle", 1.0), ("used again", 2.5), *PRE.events]
    assert failed(pre=Life(samples, [event for event in events if event not in PRE.events[2:4]])) == [
        "an idle system comes to rest with the pool"
    ]


def test_what_enabling_costs_is_not_of_the_round_after_it() -> None:
    late = replace(GOOD["dyn"], events=[*PRE.events, ("enabled", 2.0)])
    samples = [replace(sample, flushes=100 if at == 2 else 0) for at, sample in enumerate(late.samples)]
    assert browser.row("dyn", replace(late, samples=samples))["last_round_flushes"] == 0


def test_what_is_in_a_row() -> None:
    row = browser.row("pre", PRE)
    # Each level's tables, and pgd's take two pages.
    assert row["most_held"] == 40 * 6
    assert (row["held_at_the_end"], row["held_at_last"]) == (35 * 6, 15 * 6)
    assert (row["seconds_to_half"], row["seconds_to_least"]) == (1.0, 1.0)
    assert row["processes"] == 20 and row["seconds"] == 3.0
    assert "most_held" not in browser.row("stock", STOCK)
    made = browser.curve(PRE)
    assert made["PGD cached"][0] == 10 * 3 and made["PTE in_use"][1] == 30
    assert browser.curve(STOCK)["held"] == [None] * 5


def transcript(samples: str, ticks: Sequence[int]) -> Transcript:
    """Return a run with so many flushes before each tick."""
    driver = "marionette ready at=2000000000\nmarionette opened at=3000000000\n"
    said = {"first tabs": driver, "tabs": driver, "ended": "4.5\n", "samples": samples}
    buckets = [
        bucket
        for flushes in ticks
        for bucket in (Bucket("begin", 1, Counts(pages=flushes)), Bucket(TICK, 1, Counts()))
    ]
    results = tuple(StepResult(Step(name, ""), text.encode(), 0, 0.0) for name, text in said.items())
    return Transcript(MACHINE, results, tuple(buckets), "")


SAMPLES = (
    "sample at=1000000000 processes=5 tasks=9\n"
    "sample at=1500000000 processes=6 tasks=9 pte_cached=1\n"
    "sample at=2000000000 processes=9 tasks=9 pte_cached=2\n"
)


def test_flushes_belong_to_the_sample_after_them() -> None:
    found = browser.life(transcript(SAMPLES, [1000, 7, 3]))
    # Before the first there is the boot.
    assert [sample.flushes for sample in found.samples] == [0, 7, 3]
    assert [sample.at_s for sample in found.samples] == [0.0, 0.5, 1.0]
    assert found.samples[2].values == {"processes": 9, "tasks": 9, "pte_cached": 2}
    assert found.at("opened") == 2.0 and found.at("ended") == 3.5
    assert found.samples[2].held is None  # other levels are missing
    # The last sample may not have been written when the file was read.
    assert len(browser.life(transcript(SAMPLES, [1000, 7, 3, 1])).samples) == 3


def test_of_two_lives_in_a_machine_each_has_its_own() -> None:
    first, second = transcript(SAMPLES, [1000, 7, 3]), transcript(SAMPLES.replace("9", "8"), [50, 6, 2])
    prepare = StepResult(Step("prepare", ""), b"", 0, 0.0)
    results, buckets = [prepare], [Bucket("begin", 0, Counts(pages=5))]
    for group, own in (("stock", first), ("pre", second)):
        since = len(results)
        results += [replace(r, step=replace(r.step, name=f"{group}: {r.step.name}")) for r in own.results]
        buckets += [Bucket("begin", since, Counts())]
        buckets += [replace(bucket, step=since + (bucket.step or 0)) for bucket in own.buckets]
        buckets += [Bucket("begin", len(results) - 1, Counts()), Bucket("end", None, Counts(pages=9))]
    both = Transcript(MACHINE, tuple(results), tuple(buckets), "")
    assert browser.life(browser.one_of(both, "stock")) == browser.life(first)
    assert browser.life(browser.one_of(both, "pre")) == browser.life(second)


@pytest.mark.parametrize(("samples", "ticks"), [("", [1, 2]), (SAMPLES, [1, 2]), (SAMPLES, [1, 2, 3, 4, 5])])
def test_samples_without_their_ticks_are_an_error(samples: str, ticks: list[int]) -> None:
    with pytest.raises(LabError, match="samples and wrote"):
        browser.life(transcript(samples, ticks))
