# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Watching a machine: with real logs, and other processes in place of QEMU."""

import os
import time
from pathlib import Path

import pytest

from recorded import DATA, NONCE, STEPS
from trapless_lab.machines import session
from trapless_lab.machines.monitor import Monitor
from trapless_lab.machines.qemu import Outputs
from trapless_lab.machines.script import Step, StepLog
from trapless_lab.progress import Progress


class Recorder(Progress):
    """Records its calls."""

    def __init__(self) -> None:
        self.finished_steps: list[str] = []

    def finished(self, step: str, seconds: float) -> None:
        """Record it."""
        self.finished_steps.append(step)


def watch(
    directory: Path,
    argv: list[str],
    *,
    console: str = "xen-console.log",
    steps_log: bytes | None = None,
    steps: list[Step] = STEPS,
    silence_s: float = 60,
    monitor: Monitor | None = None,
    inner_boot_s: float | None = None,
) -> list[str]:
    outputs = Outputs(*(directory / name for name in ("console", "steps", "trace", "qemu")))
    outputs.console.write_bytes((DATA / console).read_bytes())
    outputs.steps.write_bytes((DATA / "xen-steps.log").read_bytes() if steps_log is None else steps_log)
    progress = Recorder()
    watched = session.Session(
        "m", StepLog(steps, NONCE), outputs, progress, silence_s, monitor=monitor, inner_boot_s=inner_boot_s
    )
    with session.process(argv, outputs.complaints) as process:
        watched.follow(process)
    return progress.finished_steps


def test_complete_run(tmp_path: Path) -> None:
    assert watch(tmp_path, ["true"]) == [step.name for step in STEPS]


def test_unexpected_exit_code_names_the_step(tmp_path: Path) -> None:
    steps = [*STEPS[:3], Step("failing", "exit 3")]
    with pytest.raises(session.GuestError, match='step "failing" ended with exit code 3, not 0'):
        watch(tmp_path, ["sleep", "60"], steps=steps)


def test_early_end_names_the_next_step_and_shows_qemus_output(tmp_path: Path) -> None:
    with pytest.raises(
        session.GuestError, match=r"exit code 4\) while waiting for step \"bytes\" to begin"
    ) as info:
        watch(tmp_path, ["sh", "-c", "echo no such device; exit 4"], steps_log=b"")
    assert "no such device" in str(info.value) and not isinstance(info.value, session.KilledError)


def test_an_emulator_that_a_signal_ended_is_told_from_one_that_ended(tmp_path: Path) -> None:
    with pytest.raises(session.KilledError, match=r"exit code -9\) while waiting"):
        watch(tmp_path, ["sh", "-c", "kill -KILL $$"], steps_log=b"")


@pytest.mark.parametrize("console", ["bare-panic-console.log", "xen-panic-console.log"])
def test_crash_is_seen_at_once(tmp_path: Path, console: str) -> None:
    started = time.monotonic()
    with pytest.raises(session.GuestError, match="sysrq triggered crash"):
        watch(tmp_path, ["sleep", "60"], console=console, steps_log=b"")
    assert time.monotonic() - started < 50  # what is watched would have gone on for longer


# The end of a boot of stock Linux 6.12 on two CPUs; no other symptom was on its console.
STALE_BREAKPOINT = b"""\
[    2.556290] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI
[    2.556667]  </TASK>
[    2.556741] Modules linked in:
[    2.557152] RIP: 0010:sched_clock_cpu+0x9/0x1d0
[    2.557388] Kernel panic - not syncing: Fatal exception in interrupt
"""


@pytest.mark.parametrize(
    ("old", "new", "steps_log", "kind"),
    [
        (b"", b"", b"", session.EmulatorError),
        (b"Oops: int3: 0000", b"Oops: 0002", b"", session.GuestError),
        (b"linked in:", b"linked in: zram", b"", session.GuestError),
        (b"", b"", b"\n@%b 1.00 begin 0000\n" % NONCE.encode(), session.GuestError),
    ],
    ids=["stale breakpoint", "another exception", "a module is in", "a step has begun"],
)
def test_only_a_breakpoint_that_is_gone_is_the_emulators_fault(
    tmp_path: Path, old: bytes, new: bytes, steps_log: bytes, kind: type[session.GuestError]
) -> None:
    console = tmp_path / "boot.log"
    console.write_bytes(STALE_BREAKPOINT.replace(old, new) if old else STALE_BREAKPOINT)
    with pytest.raises(session.GuestError, match="Fatal exception in interrupt") as info:
        watch(tmp_path, ["sleep", "60"], console=str(console), steps_log=steps_log)
    assert info.type is kind


def test_step_timeout_names_the_step_and_shows_its_output(tmp_path: Path) -> None:
    log = b"\n@%b 1.00 begin 0000\nhalfway there" % NONCE.encode()
    with pytest.raises(session.GuestError, match=r'timed out after 0.2 s waiting for step "slow"') as info:
        watch(tmp_path, ["sleep", "60"], steps_log=log, steps=[Step("slow", "sleep 99", timeout_s=0.2)])
    assert "halfway there" in str(info.value)


def test_boot_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BOOT_TIMEOUT_S", 0.2)
    with pytest.raises(session.GuestError, match=r'timed out after 0.2 s waiting for step "bytes" to begin'):
        watch(tmp_path, ["sleep", "60"], steps_log=b"")


def test_a_silent_boot_is_given_up_early(tmp_path: Path) -> None:
    with pytest.raises(session.EmulatorError, match=r'silent for 0.2 s while waiting for step "bytes"'):
        watch(tmp_path, ["sleep", "60"], steps_log=b"", silence_s=0.2)
    # While a step runs, the console may be silent for the step's whole time limit.
    log = b"\n@%b 1.00 begin 0000\n" % NONCE.encode()
    with pytest.raises(session.GuestError, match=r'timed out after 0.5 s waiting for step "slow"'):
        watch(
            tmp_path,
            ["sleep", "60"],
            steps_log=log,
            steps=[Step("slow", "sleep 99", timeout_s=0.5)],
            silence_s=0.2,
        )


@pytest.mark.parametrize(
    ("printed", "kind", "message"),
    [
        (b"[    0.2] loading", session.InnerBootError, 'no boot inside after 0.2 s waiting for step "inner"'),
        (b"", session.GuestError, r'timed out after 1 s waiting for step "inner"'),
        (b"inner: begin\n", session.GuestError, r'timed out after 1 s waiting for step "inner"'),
    ],
)
def test_an_inner_guest_that_does_not_boot_is_the_emulators_fault(
    tmp_path: Path, printed: bytes, kind: type[session.GuestError], message: str
) -> None:
    log = b"\n@%b 1.00 begin 0000\n%b" % (NONCE.encode(), printed)
    inner = Step("inner", "vmm", timeout_s=1, boots="inner: begin")
    with pytest.raises(session.GuestError, match=message) as info:
        watch(tmp_path, ["sleep", "60"], steps_log=log, steps=[inner], inner_boot_s=0.2)
    assert info.type is kind


def test_after_another_step_it_is_a_failure(tmp_path: Path) -> None:
    log = b"\n@%b 1.00 begin 0000\n\n@%b 1.00 end 0000 0\n\n@%b 1.00 begin 0001\n[    0.2] loading"
    steps = [Step("insmod", "insmod x"), Step("inner", "vmm", timeout_s=1, boots="inner: begin")]
    with pytest.raises(session.GuestError, match='timed out after 1 s waiting for step "inner"') as info:
        watch(
            tmp_path,
            ["sleep", "60"],
            steps_log=log.replace(b"%b", NONCE.encode()),
            steps=steps,
            inner_boot_s=0.2,
        )
    assert info.type is session.GuestError


class Answer(Monitor):
    """A monitor that always gives the same answer."""

    def __init__(self, stuck: bool) -> None:
        super().__init__(Path("none"))
        self._answer, self.asked = stuck, 0

    def stuck(self) -> bool:
        """Give it."""
        self.asked += 1
        return self._answer


@pytest.mark.parametrize(
    ("stuck", "kind", "message"),
    [
        (True, session.EmulatorError, 'breakpoint that is gone while waiting for step "slow"'),
        (False, session.GuestError, 'timed out after 1 s waiting for step "slow"'),
    ],
)
def test_a_step_that_hangs_is_the_emulators_fault_if_its_monitor_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: bool, kind: type[session.GuestError], message: str
) -> None:
    monkeypatch.setattr(session, "_ASKED_AFTER_S", 0.2)
    answer = Answer(stuck)
    slow = [*STEPS[:3], Step("slow", "sleep 100", timeout_s=1)]
    begun = (DATA / "xen-steps.log").read_bytes().partition(b" end 0003")[0]
    with pytest.raises(session.GuestError, match=message) as info:
        watch(tmp_path, ["sleep", "60"], steps=slow, steps_log=begun, monitor=answer)
    assert info.type is kind
    assert answer.asked == 1 if stuck else answer.asked > 2


def test_power_off_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "POWER_OFF_TIMEOUT_S", 0.2)
    with pytest.raises(session.GuestError, match=r"waiting for the guest to power off"):
        watch(tmp_path, ["sleep", "60"])


def test_process_is_killed_when_the_block_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), session.process(["sleep", "60"], tmp_path / "log") as process:
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
