# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-guest-spml on its machine's output: a recorded run, and the same with changes."""

import pytest

import replay
from trapless_lab.dirty.experiments import guest as dirty_guest
from trapless_lab.dirty.experiments import guest_spml as dirty_guest_spml
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Result
from trapless_lab.machines import nested


@pytest.fixture(autouse=True)
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirty_guest, "files", dict)
    monkeypatch.setattr(nested, "files", lambda *_inner: {})


def _run(old: str = "", new: str = "") -> Result:
    def forge(_step: str, output: str) -> str:
        assert old in output
        return output.replace(old, new, 1) if old else output

    return dirty_guest_spml.dirty_guest_spml(replay.quick("dirty-guest-spml", forge))


def test_the_recording_holds() -> None:
    result = _run()
    assert replay.failing(result) == []
    contract = {"backend", "tracked_insns_per_page", "collect_insns_per_page", "missed", "spurious"}
    assert all(contract <= set(row) for row in result.rows)
    assert [row["density"] for row in result.rows] == [1, 0.1, 0.01]
    assert "NESTED EMULATION" in result.method and "no times" in result.method


def test_the_estimates_are_sums_of_their_parts() -> None:
    (row,) = _run().keys["formulas"]
    tracker = row["x: drain"] + row["x: walk"] + row["x: read"] + row["p"]
    assert row["tker estimated"] == pytest.approx(tracker, abs=3)
    whole = row["tked"] + tracker + row["faults"] * row["a fault"]
    assert row["tked_tker estimated"] == pytest.approx(whole, rel=1e-4)


def test_a_call_costs_half_of_what_two_add_to_a_turn() -> None:
    assert _run().keys["call"]["instructions"] == round((51363 - 28718) / 4)


def test_the_mapping_is_per_gib() -> None:
    mapping = _run().keys["reverse_mapping"]
    assert mapping["instructions_a_gib"] == pytest.approx(2836442 / 2 * 16)


@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ('"missed":0', '"missed":1', "spml misses nothing"),
        ('"twin_missed":0', '"twin_missed":3', "spml misses nothing"),
        ("reported n=16384 missed n=0", "reported n=16380 missed n=4", "the parts miss nothing"),
        ("logged n=16733", "logged n=16383", "the log has it"),
    ],
)
def test_each_claim_can_fail(old: str, new: str, failing: str) -> None:
    assert replay.failing(_run(old, new)) == [failing]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("inner: end 0", "inner: end 1", "the inner guest's script failed"),
        ("section: turns with calls\n", "", "the inner guest ran"),
        ("walk_ns=", "took ", 'section "mapping" printed no'),
    ],
)
def test_an_incomplete_run_is_an_error(old: str, new: str, why: str) -> None:
    with pytest.raises(LabError, match=why):
        _run(old, new)
