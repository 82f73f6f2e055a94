# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The places where Xen assigns types, found in the installed binary, and the experiment on the counts."""

import pytest

from trapless_lab.errors import LabError
from trapless_lab.machines.trace import Counts
from trapless_lab.pagetable import page_types
from trapless_lab.pagetable.experiments import types as pagetable_types
from trapless_lab.pagetable.experiments.types import DESCRIPTORS, Setting
from trapless_lab.pagetable.page_types import FIRST_ID, TYPES
from trapless_lab.plugins.spans import Record


def test_every_type_is_found_in_xen() -> None:
    events = page_types.plan().events
    assert sorted({id - FIRST_ID for _, id in events}) == list(range(len(TYPES)))
    assert len({address for address, _ in events}) == len(events)


@pytest.mark.parametrize("left_out", ["movabs", "cmp"])
def test_a_function_that_compares_otherwise_is_refused(left_out: str) -> None:
    code = list(page_types._typing())
    at = next(i for i, each in enumerate(code) if page_types._type_loaded(each) == 0)
    del code[at + ("movabs", "cmp").index(left_out)]
    with pytest.raises(LabError, match=r"compares with the types .*\[1, 2, 2, 2\]"):
        page_types._branches(code)


def test_changes_are_counted_within_their_stretch() -> None:
    records = [Record(at, 0, 0, 0, FIRST_ID + type, 0) for at, type in ((1, 0), (2, 4), (3, 0), (9, 0))]
    assert pagetable_types.count(records, 2, 9) == {"l1": 1, "l2": 0, "l3": 0, "l4": 0, "seg_desc": 1}


def setting(l1: int, seg_desc: int, pages: int, domain: int = 0) -> Setting:
    changes = {**dict.fromkeys(TYPES[:-1], l1), "seg_desc": seg_desc}
    return Setting(changes, 1.0, Counts(pages=pages, domain=domain))


GOOD = {
    "nothing": setting(5, 0, 80),
    "idle": setting(5, 0, 80),
    "busy": setting(500, 0, 1960, 400),
    "control": setting(50, DESCRIPTORS, 280),
}


@pytest.mark.parametrize(
    ("name", "wrong", "complaint"),
    [
        ("control", setting(50, 0, 260), "descriptors are seen where there are some"),
        ("busy", setting(50, 0, 260), "a busy guest changes types at every level"),
        ("busy", setting(500, 0, 2200, 400), "busy: the IOMMU saw the same"),
        ("busy", setting(500, 0, 1500, 400), "busy: the IOMMU saw the same"),
        ("idle", setting(0, 0, 200), "idle: the IOMMU saw the same"),
    ],
)
def test_invalid_counts_are_named(name: str, wrong: Setting, complaint: str) -> None:
    assert all(check.holds for check in pagetable_types.checks(GOOD, 100))
    failed = [check.name for check in pagetable_types.checks({**GOOD, name: wrong}, 100) if not check.holds]
    assert failed == [complaint]


def test_the_conclusion_follows_from_the_numbers() -> None:
    assert pagetable_types.conclusion(GOOD).startswith("they do not deserve")
    many = {**GOOD, "busy": setting(500, 100, 2060, 400)}
    assert pagetable_types.conclusion(many).startswith("they do deserve")
