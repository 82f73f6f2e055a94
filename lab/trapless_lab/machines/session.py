# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Watches one emulator from boot to power-off.

Invariant: the emulator never outlives the block that started it, every wait has a time limit, and an error
says what was waited for and shows the ends of both logs.
"""

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from .. import host
from ..errors import LabError
from ..progress import Progress
from .monitor import Monitor
from .qemu import Outputs
from .script import Log

# A boot took over a minute beside six others on two processors.
BOOT_TIMEOUT_S = 360
POWER_OFF_TIMEOUT_S = 120

_POLL_S = 0.05
_TAIL_LINES = 25
# Linux changes a jump label by way of a breakpoint. QEMU, which emulates several CPUs, sometimes reports it
# to one of them after the kernel has taken it away, which no processor does: 1 boot of 40 of stock 6.12 died
# of it at a late initcall. Once a step has begun or a module is in, it is no excuse any more.
_STALE_BREAKPOINT = re.compile(rb"\bint3: 0000 \[#1\]")
_NO_MODULES = re.compile(rb"Modules linked in:\s*$", re.MULTILINE)
# How long nothing is logged before the monitor is asked, and again. It takes seconds to answer.
_ASKED_AFTER_S = 30.0
# How long a crash may go on printing before its log is shown.
_CRASH_GRACE_S = 1.0


class GuestError(LabError):
    """A machine did not complete its steps."""


class KilledError(GuestError):
    """A machine's emulator was ended by a signal of the host, as when memory is short there."""


class EmulatorError(GuestError):
    """A machine stopped for what its emulation does, and no processor."""


class InnerBootError(EmulatorError):
    """The machine inside a machine did not boot."""


class _Tail:
    """Reads what was appended to a file since the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data = b""

    def read(self) -> bytes:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(len(self.data))
            fresh = file.read()
            self.data += fresh
            return fresh
        return b""


def last_lines(text: str) -> str:
    """Return the end of a log, indented."""
    lines = [line for line in text.splitlines() if line.strip()]  # Xen doubles its line ends
    return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:]) or "    (nothing)"


@contextlib.contextmanager
def process(
    argv: Sequence[str], log: Path, descriptors: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, its own output in ``log``, and kill it at the end of the block.

    It inherits the descriptors, under the same numbers.
    """
    # setpriv covers the case that this Python process is killed.
    guarded = [str(host.tool("setpriv", "util-linux")), "--pdeathsig", "KILL", *argv]
    with log.open("wb") as output:
        started = subprocess.Popen(
            guarded, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=descriptors
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


class Session:
    """A run that is being watched."""

    def __init__(
        self,
        machine: str,
        log: Log,
        outputs: Outputs,
        progress: Progress,
        silence_s: float | None = None,
        boot_s: float | None = None,
        monitor: Monitor | None = None,
        inner_boot_s: float | None = None,
    ) -> None:
        """Watch ``machine``; a boot hangs if there is no output on the console for ``silence_s`` seconds, or
        no step after ``boot_s`` seconds, that of a machine inside it after ``inner_boot_s``. ``monitor`` is
        asked whether it hangs later.
        """
        self._inner_boot_s = inner_boot_s
        self._monitor = monitor
        self._machine = machine
        self._boot_s = BOOT_TIMEOUT_S if boot_s is None else boot_s
        self._silence_s = self._boot_s if silence_s is None else silence_s
        self._log = log
        self._progress = progress
        self._console = _Tail(outputs.console)
        self._steps = _Tail(outputs.steps)
        self._complaints = outputs.complaints

    @property
    def console(self) -> str:
        """The console's whole output."""
        return self._console.data.decode(errors="replace")

    def follow(self, process: subprocess.Popen[bytes], *, powers_off: bool = True) -> None:
        """Watch until every step is done and the guest has powered off, if its emulator supports that."""
        self._progress.booting(self._machine, len(self._log.steps))
        position, since = self._position(), time.monotonic()
        said, heard = 0, since
        asked = since
        while True:
            # Checked before the logs are read, so that they contain all that QEMU wrote before it ended.
            ended = process.poll() is not None
            self._read()
            if self._position() != position:
                position, since = self._position(), time.monotonic()
                asked = since
            if len(self._console.data) != said:
                said, heard = len(self._console.data), time.monotonic()
            waiting_for, limit = self._due()
            if self._log.crash and (crash := self._log.crash.search(self._console.data)):
                time.sleep(_CRASH_GRACE_S)
                self._read()
                what = crash[0].decode(errors="replace").strip()
                kind = EmulatorError if self._stale_breakpoint else GuestError
                self._fail(f"crashed ({what}) while waiting for {waiting_for}", kind)
            if self._finished and (not powers_off or (ended and process.returncode == 0)):
                return
            if ended:
                self._fail(
                    f"ended (exit code {process.returncode}) while waiting for {waiting_for}",
                    KilledError if process.returncode < 0 else GuestError,
                )
            if time.monotonic() - since > limit:
                kind = EmulatorError if self._booting else GuestError
                self._fail(f"timed out after {limit:g} s waiting for {waiting_for}", kind)
            if self._inner_boot_s and time.monotonic() - since > self._inner_boot_s and self._inner_boots:
                self._fail(
                    f"no boot inside after {self._inner_boot_s:g} s waiting for {waiting_for}", InnerBootError
                )
            if self._booting and time.monotonic() - heard > self._silence_s:
                self._fail(f"silent for {self._silence_s:g} s while waiting for {waiting_for}", EmulatorError)
            if self._monitor and time.monotonic() - asked > _ASKED_AFTER_S:
                if self._monitor.stuck():
                    self._fail(
                        f"executes a breakpoint that is gone while waiting for {waiting_for}", EmulatorError
                    )
                asked = time.monotonic()
            time.sleep(_POLL_S)

    @property
    def _booting(self) -> bool:
        return not (self._log.running or self._log.results)

    @property
    def _inner_boots(self) -> bool:
        """Whether the first step has started a machine that prints, but has not booted."""
        running = self._log.running
        if running is None or running.boots is None or self._log.results:
            return False
        printed = self._log.partial.strip()
        return bool(printed) and running.boots not in printed

    @property
    def _stale_breakpoint(self) -> bool:
        console = self._console.data
        return bool(self._booting and _STALE_BREAKPOINT.search(console) and _NO_MODULES.search(console))

    @property
    def _finished(self) -> bool:
        return len(self._log.results) == len(self._log.steps)

    def _position(self) -> tuple[int, bool]:
        return len(self._log.results), self._log.running is not None

    def _due(self) -> tuple[str, float]:
        """Return what is waited for, and the time limit."""
        if self._log.running:
            return f'step "{self._log.running.name}"', self._log.running.timeout_s
        if self._finished:
            return "the guest to power off", POWER_OFF_TIMEOUT_S
        return f'step "{self._log.steps[len(self._log.results)].name}" to begin', self._boot_s

    def _read(self) -> None:
        self._console.read()
        was_running, seen = self._log.running, len(self._log.results)
        self._log.feed(self._steps.read())
        for result in self._log.results[seen:]:
            self._progress.finished(result.step.name, result.duration_s)
            if not result.as_expected:
                self._fail(
                    f'step "{result.step.name}" ended with exit code {result.rc}, not {result.step.expect}'
                )
        if self._log.running is not None and self._log.running is not was_running:
            self._progress.started(self._log.running.name)

    def _fail(self, what: str, kind: type[GuestError] = GuestError) -> NoReturn:
        if self._log.running:
            step_log = self._log.partial
        else:
            step_log = self._log.results[-1].output if self._log.results else ""
        complaint = self._complaints.read_text(errors="replace")
        raise kind(
            f"machine {self._machine}: {what}\n"
            f"  the step's last lines:\n{last_lines(step_log)}\n"
            f"  the console's last lines:\n{last_lines(self.console)}"
            + (f"\n  the emulator says:\n{last_lines(complaint)}" if complaint else "")
        )
