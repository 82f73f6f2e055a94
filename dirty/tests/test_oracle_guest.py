# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The oracle on a stock Debian 6.1 kernel, which has soft-dirty and no asynchronous write protection."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trapless_lab import artifacts, runner
from trapless_lab.errors import LabError
from trapless_lab.initramfs import File, Link, program
from trapless_lab.machine import MACHINES
from trapless_lab.script import Step
from trapless_lab.transcript import Transcript

pytestmark = pytest.mark.machine

BACKENDS = {"soft-dirty", "uffd-sync", "mprotect"}
# These take minutes under emulation: only for the back end that no other kernel here has.
LARGE = ("alternate-pages", "sparse")
LONG = ("racing-writers", "racing-watch", "many-ranges")
_SWAP = "echo 256M >/sys/block/zram0/disksize && mkswap /dev/zram0 && swapon /dev/zram0"


def _files() -> dict[str, File | Link]:
    oracle = artifacts.build_dir() / "dirty" / "release" / "dirty-oracle"
    if not oracle.exists():
        raise LabError(f"{oracle} is not built; run cargo build --release -p dirty-oracle in dirty/")
    return program(oracle)


def _step(name: str, arguments: str, timeout_s: float) -> Step:
    """Return a step that runs the oracle; what it prints is one line of JSON.

    Exit code 1, pages were missed, is for the test to judge, which can show which.
    """
    return Step(name, f"dirty-oracle {arguments}; [ $? -le 1 ]", timeout_s=timeout_s)


def _only(names: tuple[str, ...]) -> str:
    return " ".join(f"--scenario {name}" for name in names)


def _report(transcript: Transcript, step: str) -> dict[str, Any]:
    lines = [line for line in transcript[step].output.splitlines() if line.startswith('{"good"')]
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def _bad(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows that speak against a back end: missed pages, failures, crashes."""

    def is_bad(verdict: dict[str, Any]) -> bool:
        done = verdict.get("done")
        return "crashed" in verdict or (done is not None and bool(done["missed"] or done["failures"]))

    return [row for row in report["rows"] if is_bad(row["verdict"])]


def _except(names: tuple[str, ...]) -> str:
    return " ".join(f"--except {name}" for name in names)


def test_nothing_is_missed_on_the_stock_kernel() -> None:
    steps = {
        "soft-dirty": f"--backend soft-dirty {_except(LARGE)}",
        "others": f"--backend uffd-sync --backend mprotect --target own {_except(LARGE + LONG)}",
        "property": "property --cases 15",
    }
    transcript = runner.run(
        MACHINES["bare-smp"],
        [
            Step("swap", _SWAP),
            *(_step(name, f"{arguments} --json", timeout_s=600) for name, arguments in steps.items()),
        ],
        files=_files(),
        modules=("zram",),
    )
    reports = {name: _report(transcript, name) for name in steps}
    assert [row["backend"] for row in reports["property"]["rejected"]] == ["uffd-async"]
    assert {row["backend"] for row in reports["property"]["rows"]} == BACKENDS
    for name, report in reports.items():
        assert _bad(report) == [], name
        swapped = [row["verdict"] for row in report["rows"] if row["scenario"] == "swap"]
        assert all("done" in verdict for verdict in swapped), swapped
    assert transcript.kernel_warnings() == []


def test_large_memory_on_the_stock_kernel() -> None:
    arguments = f"--json --backend soft-dirty --target own {_only(LARGE)}"
    transcript = runner.run(MACHINES["bare-smp"], [_step("large", arguments, timeout_s=800)], files=_files())
    report = _report(transcript, "large")
    assert len(report["rows"]) == len(LARGE) and _bad(report) == []


# Scenarios that must catch each mistake, here of soft-dirty: the controls that need this kernel. The race,
# which an emulated machine is too slow to lose in racing-writers, is among libdirty's own tests below.
CONTROLS = {
    "rearm": ("one-writer", "straddle", "huge", "read", "munmap-refault", "mremap", "fork", "swap"),
    "discard": ("dontneed", "dontneed-block", "dontneed-huge"),
}


def test_mistakes_of_soft_dirty_are_caught() -> None:
    steps = [
        _step(fault, f"--json --backend soft-dirty --fault {fault} {_only(names)}", timeout_s=600)
        for fault, names in CONTROLS.items()
    ]
    transcript = runner.run(
        MACHINES["bare-smp"], [Step("swap", _SWAP), *steps], files=_files(), modules=("zram",)
    )
    for fault, names in CONTROLS.items():
        report = _report(transcript, fault)
        caught = {(row["scenario"], row["target"]) for row in _bad(report)}
        assert caught == {(name, target) for name in names for target in ("own", "other")}, fault


def _direct_tests(to: Path) -> Path:
    """Build libdirty's tests of soft-dirty and return the program, small enough for an initramfs."""
    folder = Path(__file__).parents[1]
    command = "cargo test --locked --no-run --message-format=json -p libdirty --features fault-injection"
    built = subprocess.run(
        [*command.split(), "--test", "soft_dirty"], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    subprocess.run(["strip", "-o", to, programs[-1]], check=True)
    return to


def test_soft_dirty_directly(tmp_path: Path) -> None:
    tests = _direct_tests(tmp_path / "soft_dirty")
    steps = [Step("tests", f"NEED_SOFT_DIRTY=1 {tests.name} --test-threads=1", timeout_s=400, expect=None)]
    transcript = runner.run(MACHINES["bare-smp"], steps, files=program(tests))
    output = transcript["tests"].output
    assert " 0 failed" in output, output
    for control in ("a_race_loses_writes", "discards_are_missed"):
        assert f"{control} ... ok" in output, output
