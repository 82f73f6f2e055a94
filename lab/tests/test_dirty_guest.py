# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-guest on its machines' output: a recorded quick run, and the same with changes."""

import json
from typing import Any

import pytest

import replay
from trapless_lab.dirty.experiments import guest as dirty_guest
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Result
from trapless_lab.experiment.plots import Album


@pytest.fixture(autouse=True)
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirty_guest, "files", dict)


def _run(forge: replay.Forge = lambda _step, output: output, plots: Album | None = None) -> Result:
    return dirty_guest.dirty_guest(replay.quick("dirty-guest", forge, plots))


def test_the_recording_holds() -> None:
    result = _run(plots=(album := Album()))
    assert replay.failing(result) == []
    contract = {"backend", "tracked_insns_per_page", "collect_insns_per_page", "missed", "spurious"}
    assert all(contract <= set(row) for row in result.rows)
    assert {row["backend"] for row in result.rows} == {*dirty_guest.BACKENDS, "epml"}
    assert {row["density"] for row in result.rows} == set(dirty_guest.DENSITIES)
    assert set(album.drawn) == {"dirty-guest-tracked.png", "dirty-guest-tracker.png"}
    # A quick run has one size: no line.
    assert set(album.left_out) == {"dirty-guest-sizes.png"}


def test_a_model_is_labelled_as_one() -> None:
    result = _run()
    rows = [*result.rows, *result.keys["formulas"]]
    assert all(row["model"] == (row["backend"] == "epml") for row in rows)
    texts = [check.name for check in result.checks if "epml" in check.name and "misses" not in check.name]
    texts += [target.name for target in result.targets if "epml" in target.name]
    assert texts and all("(model)" in text for text in texts)


def test_there_are_formulas_for_every_technique() -> None:
    found = {row["backend"]: row for row in _run().keys["formulas"]}
    assert set(found) == {"soft-dirty", "dbit", "epml"}
    proc = found["soft-dirty"]
    assert proc["faults"] >= proc["reported"] > 0
    assert proc["times tracked"] > 100 > found["dbit"]["times tracked"] == 1
    assert proc["tked_tker estimated"] > proc["tker estimated"] > proc["x: walk"]


def _changed(backend: str, **values: float) -> replay.Forge:
    """Change the bench's output for the first run of a back end."""

    def forge(step: str, output: str) -> str:
        if step != f"{backend}, 64 MiB, 1 dirty":
            return output
        report: dict[str, Any] = json.loads(output)
        report["rows"][0] |= values
        return json.dumps(report)

    return forge


def _parts(mechanism: str, old: str, new: str) -> replay.Forge:
    return lambda step, output: output.replace(old, new) if step == f"parts of {mechanism}" else output


@pytest.mark.parametrize(
    ("forge", "failing"),
    [
        (_changed("mprotect", missed=1), "mprotect misses nothing"),
        (_changed("epml", twin_missed=1), "epml misses nothing"),
        (_changed("dbit", tracked_ns_per_page=21), "dbit on the tracked"),
        (_changed("dbit", collect_ns_per_page=302), "dbit on the tracker"),
        (_changed("epml", tracked_ns_per_page=12), "epml (model) on the tracked"),
        (_changed("soft-dirty", collect_ns_per_page=300), "epml (model) on the tracker"),
        (_parts("epml", "logged n=16384", "logged n=16385"), "epml (model) logs once"),
        (_parts("dbit", "missed n=0", "missed n=2"), "the parts miss nothing"),
    ],
)
def test_each_claim_can_fail(forge: replay.Forge, failing: str) -> None:
    assert replay.failing(_run(forge)) == [failing]


@pytest.mark.parametrize("printed", ["", "trapless: no memory\n", '{"rows":[]}'])
def test_a_bench_without_a_report_is_an_error(printed: str) -> None:
    with pytest.raises(LabError, match=r"dbit, 64 MiB, 1 dirty.*printed no report"):
        _run(lambda step, output: printed if step == "dbit, 64 MiB, 1 dirty" else output)


def test_parts_that_are_not_printed_are_an_error() -> None:
    with pytest.raises(LabError, match='parts of proc" printed no "whole'):
        _run(_parts("proc", "whole", "half"))
