# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs that are taken from kept logs, and those that must not be."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step, StepLog
from trapless_lab.machines.transcript import Transcript

MACHINE = MACHINES["bare"]
STEPS = [Step("first", "echo 1"), Step("second", "echo 2")]
FILES: Tree = {"/lib/thing": File(b"a thing")}


class Boots:
    """Machines that print the number of their boot in every step."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, machine: Machine, _tree: Tree, log: StepLog, directory: Path, **_more: Any) -> str:
        self.count += 1
        text = "".join(
            f"\n@{log.nonce} 1.00 begin {i:04}\nboot {self.count}\n@{log.nonce} 2.00 end {i:04} 0\n"
            for i in range(len(log.steps))
        )
        outputs = runner._outputs(machine, directory)
        outputs.steps.write_text(text)
        outputs.console.write_text(f"console of boot {self.count}")
        outputs.trace.write_text("")
        log.feed(text.encode())
        return outputs.console.read_text()


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Boots:
    made = Boots()
    kernel = tmp_path / "kernel"
    kernel.write_bytes(b"a kernel")
    monkeypatch.setattr(runner, "boot", made)
    monkeypatch.setattr(runner, "_kernel", lambda _machine: kernel)
    monkeypatch.setattr(
        runner, "_guest_tree", lambda _m, log, _mod, files: {"/nonce": File(log.nonce.encode()), **files}
    )
    return made


def _run(
    folder: Path,
    machine: Machine = MACHINE,
    steps: Sequence[Step] = STEPS,
    files: Tree = FILES,
    *,
    resume: bool = True,
) -> Transcript:
    return runner.run(machine, steps, files=files, work_dir=folder / "logs", resume=resume)


def test_a_whole_run_is_taken(boots: Boots, tmp_path: Path) -> None:
    _run(tmp_path)
    again = _run(tmp_path)
    assert boots.count == 1
    assert [result.output for result in again.results] == ["boot 1", "boot 1"]
    assert again.console == "console of boot 1"


def test_only_if_that_is_wanted(boots: Boots, tmp_path: Path) -> None:
    _run(tmp_path)
    assert _run(tmp_path, resume=False)["first"].output == "boot 2"
    assert boots.count == 2


def test_another_run_is_not_taken(boots: Boots, tmp_path: Path) -> None:
    _run(tmp_path)
    _run(tmp_path, replace(MACHINE, cpus=2))
    _run(tmp_path, steps=[STEPS[0], Step("second", "echo 3")])
    _run(tmp_path, files={"/lib/thing": File(b"another thing")})
    _run(tmp_path, files={"/lib/thing": File(b"a thing", 0o755)})
    (tmp_path / "kernel").write_bytes(b"another kernel")
    _run(tmp_path)
    assert boots.count == 6


def test_a_run_that_did_not_end_is_not_taken(boots: Boots, tmp_path: Path) -> None:
    _run(tmp_path)
    log = tmp_path / "logs/steps.log"
    log.write_text(log.read_text().partition("begin 0001")[0])
    _run(tmp_path)
    assert boots.count == 2


def test_nor_one_that_was_begun_anew(boots: Boots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path)

    def dies(*_arguments: Any, **_more: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "boot", dies)
        _run(tmp_path, resume=False)
    _run(tmp_path)
    assert boots.count == 2


def test_a_disk_is_not_known_to_be_the_same(boots: Boots, tmp_path: Path) -> None:
    for _ in range(2):
        _run(tmp_path, MACHINE.with_disk())
    assert boots.count == 2
