# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stock criu under ``trapless criu`` on this kernel.

Chains of pre-dump, pre-dump, dump, kill and restore of a tree whose memory changes in every way, and every
page compared by a witness that asks no tracker.
"""

import os
from pathlib import Path

import pytest

import criu
from packages import unpacked
from trapless_lab.dirty.criu import Outcome
from trapless_lab.dirty.experiments import criu_native

# Of what is built, these tests want the mutants too, which are there when machines are booted.
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="criu restores as root"),
]

TREE = "dirtychurn file 60 2"
STILL = f"{TREE} writes"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a criu that runs on this kernel."""
    return criu.working(tmp_path_factory.mktemp("criu"))


def _holds(outcome: Outcome) -> None:
    print(outcome.text)
    assert outcome.status == 0 and outcome.pages > 5000 and outcome.wrong == 0, outcome.text
    # It was tracked, and wrote: else this says nothing.
    for step in ("two", "three"):
        assert outcome.skipped(step) > 1000 and outcome.written(step) > 200, outcome.text


# The one that is chosen on this kernel, and the other.
@pytest.mark.parametrize("backend", ["", "uffd-sync"])
def test_a_tree_is_restored_as_it_was(program: Path, tmp_path: Path, backend: str) -> None:
    _holds(criu.chain(tmp_path, criu.trapless(tmp_path / "socket", program, backend=backend), TREE))


@pytest.mark.parametrize("mistake", ["hold-silent", "hold-forget"])
def test_a_holder_that_does_not_tell_is_caught(program: Path, tmp_path: Path, mistake: str) -> None:
    command = criu.trapless(tmp_path / "socket", program, mutant=True)
    # Where mappings stay as they are, criu itself notices nothing.
    tree, environment = "dirtychurn file 400 2 writes", {"DIRTY_MUTANT": mistake}
    outcome = criu.chain(tmp_path, command, tree, pause=1, environment=environment)
    print(outcome.text)
    assert outcome.status == 1 and outcome.wrong > 0, outcome.text


def test_a_holder_that_dies_means_a_full_dump(program: Path, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    end = f"kill -9 $(pgrep -f 'dirty hold .*--socket {socket}')"
    outcome = criu.chain(tmp_path, criu.trapless(socket, program), STILL, environment={"BETWEEN": end})
    print(outcome.text)
    assert outcome.status == 0 and outcome.wrong == 0, outcome.text
    # A page of the vDSO, which nobody writes, criu always takes from the parent.
    assert outcome.skipped("two") > 1000 and outcome.skipped("three") <= 4, outcome.text
    last = outcome.text.partition("two: ")[2]
    assert "was not cleared since it is tracked here" in last, outcome.text


WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "uffd-async": ("uffd-async", {}),
    "uffd-sync": ("uffd-sync", {}),
    "read": ("", {"DUMP": "--pre-dump-mode=read"}),
    "pread": ("", {"CRIU_FAULT": "135"}),
}


@pytest.mark.long("the same chain by other calls of criu, and on one processor")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("processors", ["", "0"])
def test_other_ways(program: Path, tmp_path: Path, way: str, processors: str) -> None:
    backend, environment = WAYS[way]
    command = criu.trapless(tmp_path / "socket", program, backend=backend)
    _holds(criu.chain(tmp_path, command, TREE, processors=processors, environment=environment))


@pytest.mark.long("redis of 128 MiB, as a user runs the experiment")
def test_checkpoints_of_redis(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_CRIU", str(program))
    monkeypatch.setenv("PATH", f"{unpacked('redis-tools') / 'usr/bin'}:{os.environ['PATH']}")
    rows, checks = criu_native.measure(criu_native.criu(), criu_native.QUICK_MIB)
    print(rows)
    assert checks and all(check.holds for check in checks), checks
    increment = next(row for row in rows if row["way"] == criu_native.OURS)
    assert 1 < increment["changed_mib"] <= increment["image_mib"] < criu_native.QUICK_MIB / 2, rows
