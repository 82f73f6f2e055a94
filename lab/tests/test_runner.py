# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A run that QEMU's emulation hangs is repeated from its boot, and no other. A shell stands for QEMU."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recorded import NONCE
from trapless_lab.machines import monitor, runner, session
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepLog
from trapless_lab.progress import Progress

STEPS = [Step("one", "true"), Step("two", "true", timeout_s=2)]
WHOLE = "".join(f"\n@{NONCE} 1.00 begin 000{i}\nof this boot\n@{NONCE} 2.00 end 000{i} 0\n" for i in range(2))
# The first boot ends its first step, and hangs in the second.
EMULATOR = """
echo >>{boots}
[ "$(wc -l <{boots})" -gt {hangs} ] || {{ printf '{half}' >{steps}; exec sleep 60; }}
printf '{whole}' >{steps}
"""
HALF = WHOLE.partition(f"\n@{NONCE} 2.00 end 0001")[0].replace("this boot", "a boot that hung")


def boot(
    folder: Path, hangs: int, cpus: int = 2, steps: Sequence[Step] = STEPS, half: str = HALF
) -> tuple[StepLog, int]:
    """Return what was logged, and how often the machine was booted."""
    outputs, boots = runner._outputs(MACHINES["bare"], folder), folder / "boots"
    half, whole = (text.replace("\n", "\\n") for text in (half, WHOLE))
    script = EMULATOR.format(boots=boots, hangs=hangs, steps=outputs.steps, half=half, whole=whole)
    log = StepLog(steps, NONCE)
    machine = replace(MACHINES["bare"], cpus=cpus)
    try:
        # The monitor's arguments become the shell's.
        runner._follow(machine, ["sh", "-c", script, "qemu"], log, outputs, Progress())
    finally:
        booted = len(boots.read_text())
    return log, booted


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_ASKED_AFTER_S", 0.2)
    monkeypatch.setattr(monitor.Monitor, "stuck", lambda _self: True)


@pytest.mark.usefixtures("stuck")
def test_a_run_that_is_stuck_begins_anew(tmp_path: Path) -> None:
    log, booted = boot(tmp_path, hangs=2)
    assert booted == 3
    assert [result.output.strip() for result in log.results] == ["of this boot"] * 2


INNER = [Step("inner", "true", timeout_s=2, boots="of this boot"), Step("two", "true")]


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_run_whose_inner_guest_does_not_boot_begins_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int
) -> None:
    monkeypatch.setattr(runner, "_INNER_BOOT_S", 0.2)
    begun = HALF.partition(f"\n@{NONCE} 2.00 end 0000")[0]
    log, booted = boot(tmp_path, hangs=1, cpus=cpus, steps=INNER, half=begun)
    assert booted == 2 and log.finished
    with pytest.raises(session.GuestError, match='timed out after 2 s waiting for step "inner"') as info:
        boot(tmp_path, hangs=99, cpus=cpus, steps=INNER, half=begun)
    assert info.type is session.GuestError


@pytest.mark.usefixtures("stuck")
def test_it_is_given_up_after_a_few_boots(tmp_path: Path) -> None:
    with pytest.raises(session.EmulatorError, match='gone while waiting for step "two"'):
        boot(tmp_path, hangs=99)
    assert len((tmp_path / "boots").read_text()) == runner._BOOTS


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_hang_that_is_not_qemus_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int
) -> None:
    monkeypatch.setattr(session, "_ASKED_AFTER_S", 0.2)
    # Nobody may ask about a single processor.
    monkeypatch.setattr(monitor.Monitor, "stuck", lambda _self: cpus == 1)
    with pytest.raises(session.GuestError, match='timed out after 2 s waiting for step "two"') as info:
        boot(tmp_path, hangs=1, cpus=cpus)
    assert info.type is session.GuestError and len((tmp_path / "boots").read_text()) == 1
