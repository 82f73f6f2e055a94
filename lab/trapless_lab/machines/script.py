# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Scripts of named steps: how they enter the guest and how their output comes back.

Invariant: all bytes between a step's begin frame and its end frame belong to that step only. A frame is
recognised by a nonce of the run that no step knows, and only if it is the next expected one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .initramfs import File


@dataclass(frozen=True)
class Step:
    """A shell command with a name; ``expect=None`` accepts every exit code, and ``boots`` is what a machine
    that it runs inside this one prints when it has booted.

    Steps run one after another, each in a shell of its own; what a step starts in the background lives on,
    and should have its output redirected.
    """

    name: str
    command: str
    timeout_s: float = 120
    expect: int | None = 0
    boots: str | None = None


@dataclass(frozen=True)
class StepResult:
    """A step's result; the duration is on the guest's clock, in units of 10 ms."""

    step: Step
    raw: bytes
    rc: int
    duration_s: float

    @property
    def output(self) -> str:
        """Standard output and standard error, as they came."""
        return self.raw.decode(errors="replace")

    @property
    def as_expected(self) -> bool:
        """Whether the exit code is one the step accepts."""
        return self.step.expect is None or self.rc == self.step.expect


def render(steps: Sequence[Step], nonce: str) -> dict[str, File]:
    """Return the guest files that init runs ``steps`` from."""
    if not 0 < len(steps) < 10_000:
        raise ValueError("a script has 1 to 9999 steps")
    files = {f"/steps/{i:04}": File(f"{step.command}\n".encode()) for i, step in enumerate(steps)}
    return files | {"/nonce": File(f"{nonce}\n".encode())}


class Log(Protocol):
    """A machine's log of its steps, read while it grows."""

    @property
    def steps(self) -> Sequence[Step]:
        """All steps."""

    @property
    def results(self) -> Sequence[StepResult]:
        """The steps that have ended."""

    @property
    def running(self) -> Step | None:
        """The step that is running."""

    @property
    def partial(self) -> str:
        """What the running step has printed so far."""

    @property
    def crash(self) -> re.Pattern[bytes] | None:
        """The console's line after which the machine hangs without ending by itself, if there is one."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""

    def restart(self) -> None:
        """Forget everything: the machine boots again."""


_CRASH = re.compile(rb"(?:Kernel panic|Xen BUG|FATAL TRAP|Panic on CPU|Dom0 crashed).*")

# Longer than any frame: "\n@", nonce, uptime, "begin", index, code, newline.
_LONGEST_FRAME = 128


@dataclass
class StepLog:
    """Parses the step log while it grows."""

    steps: Sequence[Step]
    nonce: str
    results: list[StepResult] = field(default_factory=list)
    running: Step | None = None
    crash: re.Pattern[bytes] = _CRASH
    _begun_at: float = 0.0
    _pending: bytes = b""
    _searched: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]+", self.nonce):
            raise ValueError("a nonce is made of hexadecimal digits")
        self._frame = re.compile(
            rb"\n@%b (\d{1,12}\.\d\d) (?:begin (\d{4})|end (\d{4}) (\d{1,3}))\n" % self.nonce.encode()
        )

    @property
    def finished(self) -> bool:
        """Whether every step has ended."""
        return len(self.results) == len(self.steps)

    @property
    def partial(self) -> str:
        """What the running step has printed so far."""
        return self._pending.decode(errors="replace") if self.running else ""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log."""
        self._pending += data
        while not self.finished and (frame := self._frame.search(self._pending, self._searched)):
            if self._accept(frame):
                self._pending = self._pending[frame.end() :]
                self._searched = 0
            else:
                self._searched = frame.start() + 1
        self._searched = max(self._searched, len(self._pending) - _LONGEST_FRAME)

    def restart(self) -> None:
        """Forget everything: the machine boots again."""
        self.results.clear()
        self.running = None
        self._pending, self._searched = b"", 0

    def _accept(self, frame: re.Match[bytes]) -> bool:
        """Process a frame if it is the expected one; any other is a step's output."""
        uptime, begin, end, rc = frame.groups()
        if int(begin or end) != len(self.results) or (begin is None) == (self.running is None):
            return False
        if begin is not None:
            self.running = self.steps[len(self.results)]
            self._begun_at = float(uptime)
        else:
            assert self.running is not None
            raw = self._pending[: frame.start()]
            duration = float(uptime) - self._begun_at
            self.results.append(StepResult(self.running, raw, int(rc), duration))
            self.running = None
        return True
