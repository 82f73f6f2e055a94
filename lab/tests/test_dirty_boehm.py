# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-boehm on its machines' output: a recorded quick run, and the same with changes."""

import pytest

import replay
from trapless_lab.dirty.experiments import boehm
from trapless_lab.dirty.workloads import SIZES, WORKLOADS
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines import nested

GCBENCH = f"gcbench, {SIZES[0]}"
FREED, ASKED = "nothing in use was freed", "each technique is what it is called"


@pytest.fixture(autouse=True)
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boehm, "files", dict)
    monkeypatch.setattr(nested, "files", lambda *_inner: {})


def _run(forge: replay.Forge = lambda _step, output: output, plots: Album | None = None) -> Result:
    return boehm.dirty_boehm(replay.quick("dirty-boehm", forge, plots))


def test_the_recording_holds() -> None:
    result = _run(plots=(album := Album()))
    assert replay.failing(result) == []
    contract = {
        *("program", "size", "technique", "tracker_ms", "tracked_ms", "untracked_ms", "checksum_ok"),
    }
    others = ("spml", "userfaultfd")
    assert all(
        contract <= set(row) for row in [*result.rows, *(row for key in others for row in result.keys[key])]
    )
    assert {row["program"] for row in result.rows} == {workload.name for workload in WORKLOADS}
    assert {row["technique"] for row in result.rows} == {"/proc", "mprotect", "dbit", "epml"}
    assert {row["technique"] for row in result.keys["spml"]} == {"/proc", "spml"}
    assert {row["technique"] for row in result.keys["userfaultfd"]} == {"/proc", "uffd-async"}
    assert set(album.drawn) == {f"dirty-boehm-{who}.png" for who in ("tracked", "tracker")}


def test_a_model_is_labelled_as_one() -> None:
    result = _run()
    assert all(row["model"] == (row["technique"] == "epml") for row in result.rows)
    names = [target.name for target in result.targets if "epml" in target.name]
    assert names and all("(model)" in name for name in names)


def test_the_formula_is_of_parts() -> None:
    found = {(row["technique"], row["program"]): row for row in _run().keys["formulas"]}
    assert {technique for technique, _ in found} == {"/proc", "dbit", "epml"}
    row = found["/proc", "gcbench"]
    assert row["faults"] > 0 and row["a fault"] > 0
    sum_ = row["tked"] + row["x"] + row["p"] + row["a fault"] * row["faults"]
    assert row["tked_tker estimated"] == pytest.approx(sum_, abs=0.1)
    # A slower run changes the measurement, and the estimate of no technique but that which takes its C_p.
    slow = _run(replay.changed(f"{GCBENCH}, /proc", r"^(done gcbench .* ns=)", r"\g<1>9"))
    after = {(row["technique"], row["program"]): row for row in slow.keys["formulas"]}
    assert after["/proc", "gcbench"]["tked_tker estimated"] == row["tked_tker estimated"]
    assert after["/proc", "gcbench"]["tked_tker measured"] > row["tked_tker measured"]


@pytest.mark.parametrize(
    ("forge", "failing"),
    [
        (replay.changed(f"{GCBENCH}, dbit", "sum=.{16}", f"sum={0:016x}"), FREED),
        (replay.changed(f"{GCBENCH}, malloc", "sum=.{16}", f"sum={0:016x}"), FREED),
        (replay.changed("spml", "sum=.{16}", f"sum={0:016x}"), FREED),
        (replay.changed(f"{GCBENCH}, /proc", "incremental=1", "incremental=0"), ASKED),
        (replay.changed(f"{GCBENCH}, dbit", "tracked by dbit", "tracked by spml"), ASKED),
        (replay.changed(f"{GCBENCH}, uffd-async", "tracked by uffd-async", "tracked by mprotect"), ASKED),
        (replay.changed(f"{GCBENCH}, mprotect", r"clears=\d+", "clears=7"), ASKED),
    ],
)
def test_each_claim_can_fail(forge: replay.Forge, failing: str) -> None:
    assert replay.failing(_run(forge)) == [failing]


def test_a_tracker_that_is_dearer_misses_its_target() -> None:
    name = "dbit: tracker of gcbench, % of that of /proc"
    assert [target.name for target in _run().targets].count(name) == 1
    dear = _run(replay.changed(f"{GCBENCH}, dbit", r"read_ns=\d+", "read_ns=900000000000"))
    assert [target.reached for target in dear.targets if target.name == name] == [False]


def test_a_program_that_crashed_is_an_error() -> None:
    with pytest.raises(LabError, match=r"gcbench, small, dbit.*printed no result"):
        _run(lambda step, output: "Segmentation fault" if step == f"{GCBENCH}, dbit" else output)
