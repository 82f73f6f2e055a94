# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pagetable-size on runs that are not the paper's half hour, or that have wrong flushes."""

from dataclasses import replace

import pytest

from trapless_lab.pagetable.experiments import size as pagetable_size
from trapless_lab.pagetable.experiments.size import ALLOCATIONS_A_SESSION, SESSION_S, Held

GOOD = Held(ALLOCATIONS_A_SESSION - 60, 60, 178, {"pte": 95}, 62, SESSION_S)


def failed(found: Held) -> list[str]:
    return [
        check.name
        for check in pagetable_size._checks({"good": GOOD, "found": found}, 1, quick=False)
        if not check.holds
    ]


def test_a_good_run() -> None:
    assert failed(GOOD) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (replace(GOOD, seconds=40), "the paper's time"),
        (replace(GOOD, hits=GOOD.hits // 2), "the paper's mix"),
        (replace(GOOD, flushes=GOOD.hits // 100), "what is served costs no flush, what is not does"),
        (replace(GOOD, flushes=0), "what is served costs no flush, what is not does"),
    ],
)
def test_an_invalid_run_is_named(found: Held, complaint: str) -> None:
    assert failed(found) == [complaint]
