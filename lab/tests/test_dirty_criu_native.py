# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-criu-native without a criu: what its figures are made of, and what it refuses."""

import os
from pathlib import Path

import pytest

from trapless_lab.dirty.experiments import criu_native
from trapless_lab.dirty.experiments.criu_native import FULL, OURS, OURS_AFTER, OURS_BEFORE, Dump
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.progress import Progress

MIB = 1 << 20
FULLS = [Dump(1, 100, 100 * MIB), Dump(2, 200, 100 * MIB), Dump(3, 900, 100 * MIB)]


def _script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def _run(monkeypatch: pytest.MonkeyPatch, increment: Dump) -> Result:
    ways = (OURS, OURS_BEFORE, OURS_AFTER)
    rows = [criu_native.row(FULL, FULLS), *(criu_native.row(way, [increment]) for way in ways)]
    monkeypatch.setattr(criu_native, "criu", lambda: Path("/bin/true"))
    monkeypatch.setattr(criu_native, "measure", lambda _program, _mib: (rows, []))
    return criu_native.dirty_criu_native(Context(quick=True, progress=Progress()))


def test_a_row_has_medians_and_extremes() -> None:
    row = criu_native.row(FULL, FULLS)
    assert (row["frozen_ms"], row["frozen_from_to"], row["dumps"]) == (200, "100.0-900.0", 3)


@pytest.mark.parametrize(
    ("increment", "reached"),
    [
        (Dump(1, 100, 11 * MIB, 10 * MIB), [True, True, True, True]),
        (Dump(1, 101, 11 * MIB, 10 * MIB), [False, False, False, True]),
        (Dump(1, 100, 12 * MIB, 10 * MIB), [True, True, True, False]),
    ],
)
def test_each_target_can_be_missed(
    monkeypatch: pytest.MonkeyPatch, increment: Dump, reached: list[bool]
) -> None:
    assert [target.reached for target in _run(monkeypatch, increment).targets] == reached


def test_a_kernel_without_soft_dirty_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch, Dump(1, 100, 11 * MIB, 10 * MIB))
    assert not result.keys["soft_dirty"] and "stock criu makes no increments" in result.method


def test_a_criu_that_does_not_know_the_kernel_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    bad = _script(tmp_path / "criu", "echo 'vdso: not understood' >&2; exit 1")
    monkeypatch.setenv("TRAPLESS_CRIU", str(bad))
    with pytest.raises(LabError, match=r"TRAPLESS_CRIU may name another:\nvdso: not understood"):
        criu_native.criu()


def test_a_dump_that_was_not_tracked_is_an_error(tmp_path: Path) -> None:
    said = "libdirty-softdirty: process 5 is not tracked, all of it reads dirty: refused"
    quiet = _script(tmp_path / "quiet", "echo 'Frozen time: 7 us'")
    loud = _script(tmp_path / "loud", "echo 'Frozen time: 7 us'", f"echo '{said}' >&2")
    assert criu_native._dump([quiet], ["dump"], tmp_path / "a").frozen_ms == 0.007
    with pytest.raises(LabError, match="not tracked: libdirty-softdirty"):
        criu_native._dump([loud], ["dump"], tmp_path / "b")
