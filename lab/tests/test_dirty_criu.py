# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-criu on its machines' output: a recorded quick run, and the same with changes."""

import pytest

import replay
from trapless_lab.dirty import criu as checkpoints
from trapless_lab.dirty.experiments import criu
from trapless_lab.dirty.workloads import CHECKPOINTED, SIZES
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines import nested

TINY = f"tiny, {SIZES[0]}"
MEMORY, RIGHT = "every page is restored as it was", "what was restored ends right"
INCREMENT = "each dump is an increment"


@pytest.fixture(autouse=True)
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu, "files", dict)
    monkeypatch.setattr(nested, "files", lambda *_inner: {})
    monkeypatch.setattr(checkpoints, "module_files", dict)


def _run(forge: replay.Forge = lambda _step, output: output, plots: Album | None = None) -> Result:
    return criu.dirty_criu(replay.quick("dirty-criu", forge, plots))


def test_the_recording_holds() -> None:
    result = _run(plots=(album := Album()))
    assert replay.failing(result) == []
    contract = {
        *("program", "size", "technique", "tracker_ms", "frozen_ms", "tracked_ms", "untracked_ms"),
        "wrong_pages",
    }
    more = {"memory_dump_ms", "memory_write_ms", "overhead_percent", "result_ok", "compared_pages"}
    rows = [*result.rows, *result.keys["spml"]]
    assert all(contract | more <= set(row) for row in rows)
    assert all(row["wrong_pages"] == 0 and row["compared_pages"] > 500 for row in rows)
    assert {row["program"] for row in result.rows} == set(criu.QUICK)
    assert {row["technique"] for row in result.rows} == {"/proc", "uffd-sync", "dbit", "epml"}
    assert {row["technique"] for row in result.keys["spml"]} == {"/proc", "spml"}
    pictures = ("tracker", "questions", "frozen", "tracked")
    assert set(album.drawn) == {f"dirty-criu-{what}.png" for what in pictures}


def test_every_program_of_the_paper_is_there() -> None:
    engines = {"baby", "cache", "stdhash", "stdtree", "tiny"}
    kernels = {"kmeans", "matrix-multiply", "pca", "word-count"}
    assert {workload.name for workload in CHECKPOINTED} == engines | kernels
    assert set(criu.QUICK) | set(criu.NESTED) <= engines | kernels


def test_a_model_is_labelled_as_one() -> None:
    result = _run()
    assert all(row["model"] == (row["technique"] == "epml") for row in result.rows)
    names = [target.name for target in result.targets if "epml" in target.name]
    assert names and all("(model)" in name for name in names)


def test_the_formulas_are_of_parts() -> None:
    found = {(row["technique"], row["program"]): row for row in _run().keys["formulas"]}
    assert {technique for technique, _ in found} == {"/proc", "dbit", "epml"}
    assert "tker estimated" not in found["/proc", "tiny"]
    row = found["dbit", "tiny"]
    assert row["tker estimated"] == pytest.approx(row["x"] + row["p"], abs=0.01)
    more = row["tked"] + row["tker estimated"] + row["a fault"] * row["faults"]
    assert row["tked_tker estimated"] == pytest.approx(more, abs=0.05)
    # Slower questions change the measurement and C_x alike, and no other technique's C_p.
    slow = _run(replay.changed(f"{TINY}, dbit", r"(passes two reads=\d+ read_ns=)", r"\g<1>9"))
    after = {(row["technique"], row["program"]): row for row in slow.keys["formulas"]}
    assert after["dbit", "tiny"]["p"] == found["dbit", "tiny"]["p"]
    assert after["dbit", "tiny"]["x"] > found["dbit", "tiny"]["x"]


@pytest.mark.parametrize(
    ("forge", "failing"),
    [
        (replay.changed(f"{TINY}, dbit", r"^(restored: .*num_records=)\d+", r"\g<1>7"), RIGHT),
        (replay.changed(f"{TINY}, /proc", r"^(program: .*num_records=)\d+", r"\g<1>7"), RIGHT),
        (replay.changed("spml", r"^(restored: .*num_records=)\d+", r"\g<1>7"), RIGHT),
        (replay.changed(f"{TINY}, dbit", r"^(\d+ pages), 0 differ", r"\1, 1 differ"), MEMORY),
        (replay.changed(f"{TINY}, /proc", r"0 on one side only", "1 on one side only"), MEMORY),
        (replay.changed(f"{TINY}, dbit", r"^\d+ pages, 0 differ", "0 pages, 0 differ"), MEMORY),
        (
            replay.changed(f"{TINY}, dbit", r"^(two: Memory pages skipped from parent: )\d+", r"\g<1>0"),
            INCREMENT,
        ),
        (
            replay.changed(
                f"{TINY}, dbit", r"^timed two", "libdirty: all of process 5 reads dirty: x\ntimed two"
            ),
            INCREMENT,
        ),
    ],
)
def test_each_claim_can_fail(forge: replay.Forge, failing: str) -> None:
    assert replay.failing(_run(forge)) == [failing]


def test_a_program_that_became_slower_misses_its_target() -> None:
    name = "dbit: tiny over untracked, %"
    slow = _run(replay.changed(f"{TINY}, dbit", r"^(timed tracked wall_ns=\d+ cpu_ns=)", r"\g<1>9"))
    assert [target.reached for target in slow.targets if target.name == name] == [False]


@pytest.mark.parametrize(
    ("pattern", "new", "said"),
    [
        (r"^restored: .*", "", "printed no result"),
        (r"^timed tracked .*", "", "did not end well"),
        (r"^passes three .*", "", "has not the three dumps"),
        (r"^.* on one side only", "", "compared no memory"),
    ],
)
def test_a_run_that_is_not_whole_is_an_error(pattern: str, new: str, said: str) -> None:
    with pytest.raises(LabError, match=f"tiny, small, dbit.*{said}"):
        _run(replay.changed(f"{TINY}, dbit", pattern, new))
