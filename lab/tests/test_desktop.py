# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pagetable-desktop on runs that are made up: which minute a flush belongs to, and what is no desktop."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.trace import TICK, Bucket, Counts
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments import desktop
from trapless_lab.pagetable.experiments.desktop import MACHINE, Session

MINUTES = 3
# The guest's clock when the sampler began, when log-in began, and when the desktop was there.
FIRST, BEGUN, READY = 50, 52, 60


def transcript(flushes: Mapping[int, int]) -> Transcript:
    """Return a run with a sample each second; ``flushes``: how many by the second in which they were."""
    seconds = range(FIRST, READY + 60 * MINUTES + 3)
    said = {
        "log in": f"{BEGUN}.0\n4000\n{READY}.0\n",
        "runs": "12000\n",
        "samples": "".join(f"sample at={at}000000000 processes={at} tasks=9\n" for at in seconds),
    }
    results = tuple(StepResult(Step(name, ""), text.encode(), 0, 0.0) for name, text in said.items())
    buckets = [
        bucket
        for at in seconds
        for bucket in (Bucket("begin", 1, Counts(pages=flushes.get(at, 0))), Bucket(TICK, 1, Counts()))
    ]
    return Transcript(MACHINE, results, tuple(buckets), "")


def test_a_flush_belongs_to_its_minute() -> None:
    # The sampler sees what happened in a second at the end of it, so the log-in has one second more.
    found = desktop.session(
        transcript({51: 7, 52: 8, 53: 100, 60: 10, 61: 1, 62: 5, 121: 6, 122: 3, 181: 4, 182: 2}), MINUTES
    )
    assert found.log_in == 100 + 10 + 1
    assert found.minutes == [5 + 6, 3 + 4, 2]
    assert found.processes == 60 * MINUTES - 1
    assert (found.empty_bytes, found.drawn_bytes) == (4000, 12000)


@pytest.mark.parametrize(
    ("minutes", "after"), [([0, 0, 0], 0), ([3, 0, 0], 1), ([0, 4, 0], 2), ([0, 0, 1], None)]
)
def test_it_is_at_rest_after_its_last_flush(minutes: list[int], after: int | None) -> None:
    assert replace(GOOD, minutes=minutes).at_rest_after == after


GOOD = Session(500, [20, 0, 0], 10, 4000, 12000)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"pre": replace(GOOD, drawn_bytes=4100)}, "the desktop was drawn"),
        ({"stock": replace(GOOD, log_in=3)}, "stock flushes when it appears"),
        ({"pre": replace(GOOD, minutes=[0, 0, 1])}, "an idle desktop comes to rest"),
        ({}, None),
    ],
)
def test_a_run_that_is_none_is_named(changed: dict[str, Session], complaint: str | None) -> None:
    found = {"stock": GOOD, "pre": replace(GOOD, log_in=20), **changed}
    assert [check.name for check in desktop.checks(found) if not check.holds] == (
        [complaint] if complaint else []
    )
