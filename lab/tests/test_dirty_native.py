# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-native on a bench's report."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trapless_lab.dirty.experiments import native as dirty_native
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Context
from trapless_lab.experiment.plots import Album
from trapless_lab.progress import Progress


def _spread(median: float) -> dict[str, float]:
    return {"median": median, "q1": median * 0.9, "q3": median * 1.1, "n": 11}


def _row(backend: str, tracked: float, collect: float) -> dict[str, Any]:
    return {
        "backend": backend,
        "pages": 262144,
        "tracked_ns_per_page": tracked,
        "collect_ns_per_page": collect,
        "missed": 0,
        "spurious": 0,
        "twin_missed": 0,
        "untracked_ns_per_page": _spread(25),
        "tracked_over_untracked": _spread(tracked / 25),
        "library_over_twin": _spread(1.01),
        "collect_over_twin": _spread(1.1),
        "memory": {"bookkeeping_bytes": 32768, "watched_pages": 262144},
    }


def _report() -> dict[str, Any]:
    points = [
        {"bytes": 64 << 20, "pages": 16384, "collect_ns": _spread(3e5), "missed": 0},
        {"bytes": 512 << 20, "pages": 131072, "collect_ns": _spread(2.4e6), "missed": 0},
    ]
    return {
        "host": {"kernel": "Linux 6.18"},
        "repeat": 11,
        "clock": "processor time, on one processor",
        "rejected": [{"backend": "soft-dirty", "why": "the kernel has none"}],
        "rows": [_row("uffd-async", 1000, 20), _row("mprotect", 3800, 100), _row("uffd-sync", 7000, 100)],
        "sweep": {"points": points, "bits_per_page": 0.98},
    }


def _tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "rust" / "release" / "trapless"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("TRAPLESS_BUILD", str(folder))


def _failing(report: dict[str, Any], *, quick: bool = False) -> list[str]:
    return [check.name for check in dirty_native.checks(report, quick=quick) if not check.holds]


def test_a_good_report_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report").write_text(json.dumps(_report()))
    _tool(tmp_path, monkeypatch, f"cat {tmp_path / 'report'}")
    result = dirty_native.dirty_native(Context(quick=False, progress=Progress(), plots=(album := Album())))
    assert result.holds, result.checks
    contract = {"backend", "tracked_ns_per_page", "collect_ns_per_page", "missed", "spurious"}
    assert all(contract <= set(row) for row in result.rows)
    assert result.keys["rejected"][0]["backend"] == "soft-dirty"
    assert album.drawn["dirty-native.png"]
    assert len(result.summary) == 2


@pytest.mark.parametrize(
    ("row", "key", "value", "failing"),
    [
        (1, "missed", 1, "mprotect missed"),
        (2, "twin_missed", 1, "uffd-sync missed"),
        (1, "tracked_ns_per_page", 2900, "mprotect dearer"),
        (0, "collect_over_twin", _spread(1.3), "collect to bare ioctl"),
        (2, "library_over_twin", _spread(1.31), "uffd-sync to its twin"),
    ],
)
def test_each_claim_can_fail(row: int, key: str, value: object, failing: str) -> None:
    report = copy.deepcopy(_report())
    report["rows"][row][key] = value
    assert _failing(report) == [failing]


def test_sizes_can_fail() -> None:
    report = _report()
    report["sweep"]["points"][1]["missed"] = 3
    report["sweep"]["bits_per_page"] = 2.0
    assert _failing(report, quick=True) == ["sizes missed", "memory"]


def test_a_quick_run_does_not_check_the_librarys_time() -> None:
    report = _report()
    for row in report["rows"]:
        row["collect_over_twin"] = row["library_over_twin"] = _spread(9)
    assert _failing(report, quick=True) == []
    assert len(_failing(report)) == 4


def test_a_back_end_that_the_host_lacks_is_left_out() -> None:
    report = _report()
    report["rows"] = report["rows"][1:]
    report["sweep"] = None
    assert _failing(report) == []


def test_what_a_librarys_handler_may_cost() -> None:
    """More for uffd-sync, whose handler makes two calls that its twin does not make; not for all."""
    report = _report()
    for row in report["rows"]:
        row["library_over_twin"] = _spread(1.2)
    assert _failing(report) == ["uffd-async to its twin", "mprotect to its twin"]
    report["rows"][2]["library_over_twin"] = _spread(1.4)
    assert "uffd-sync to its twin" in _failing(report)


def test_unbuilt_says_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    with pytest.raises(LabError, match="trapless is not built; run make"):
        dirty_native.bench(quick=True)


@pytest.mark.parametrize("script", ["exit 1", "echo rubbish", "echo '{}'; exit 2"])
def test_a_bench_that_fails_is_an_error(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tool(tmp_path, monkeypatch, script)
    with pytest.raises(LabError, match="trapless dirty bench failed"):
        dirty_native.bench(quick=True)
