# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Parses the one console of a Power machine: output of its programs, of its KVM's guests, and its end.

Invariant: the machine has succeeded only if its init says "done"; each line of a host's program begins with
the program's label.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import LabError
from ..machines.script import Step, StepResult

NS_PER_INSTRUCTION = 2
TICKS_PER_SECOND = 400_000_000
TICKS_PER_INSTRUCTION = NS_PER_INSTRUCTION * TICKS_PER_SECOND / 1e9

_LAYOUT = "bt_layout:"

_RESULT = re.compile(r"^result (\S+) (\d+) (\d+)$", re.MULTILINE)
_LASTED = re.compile(r"^lasted (\d+)$", re.MULTILINE)
_DONE = re.compile(r"^done$", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """A workload's time: ticks of the timebase, for so many repetitions."""

    ticks: int
    count: int

    @property
    def instructions(self) -> float:
        """Return the instructions of one repetition."""
        return self.ticks / self.count / TICKS_PER_INSTRUCTION


@dataclass(frozen=True)
class Console:
    """A machine's whole console output."""

    text: str

    def of(self, label: str) -> "Console":
        """Return the output of one program of a host."""
        prefix = f"{label}| "
        lines = (line for line in self.text.splitlines() if line.startswith(prefix))
        return Console("".join(f"{line.removeprefix(prefix)}\n" for line in lines))

    @property
    def samples(self) -> dict[str, list[Measured]]:
        """Return every measurement of each workload, in order."""
        found: dict[str, list[Measured]] = {}
        for name, ticks, count in _RESULT.findall(self.text):
            found.setdefault(name, []).append(Measured(int(ticks), int(count)))
        return found

    @property
    def results(self) -> dict[str, Measured]:
        """Return the workloads' measurements, by name; of several the median, the lower one of two."""
        return {
            name: sorted(taken, key=lambda one: one.instructions)[(len(taken) - 1) // 2]
            for name, taken in self.samples.items()
        }

    @property
    def done(self) -> bool:
        """Whether all programs succeeded."""
        return _DONE.search(self.text) is not None

    @property
    def ticks(self) -> int | None:
        """Return the machine's clock when its last program was about to end."""
        lasted = _LASTED.search(self.text)
        return int(lasted[1]) if lasted else None

    @property
    def instructions(self) -> float:
        """Return the machine's instructions, by its clock, when its last program was about to end."""
        if self.ticks is None:
            raise LabError("the console does not say how long the machine ran")
        return self.ticks / TICKS_PER_INSTRUCTION

    def statistics(self, label: str) -> dict[str, int]:
        """Return KVM's counters of a guest: of the VM by their names, of its vCPU as ``vcpu0/NAME``."""
        pairs = (line.rsplit(":", 1) for line in self.of(f"{label}.statistics").text.splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].strip().isdigit()}

    def traced(self, label: str) -> int:
        """Return how many accesses of a guest to traced pages were emulated."""
        counts = self.statistics(label)
        return counts["bt_traced_loads"] + counts["bt_traced_stores"] + counts["bt_traced_cacheops"]

    def shadow_misses(self, label: str) -> int:
        """Return how often a guest missed in the shadow TLB, but not in its own."""
        counts = self.statistics(label)
        return counts["itlb_virt_miss_exits"] + counts["dtlb_virt_miss_exits"]

    def layout(self, label: str) -> str:
        """Return the layout of a guest's traced blocks, in the form that KVM accepts."""
        lines = self.of(f"{label}.statistics").text.splitlines()
        return "".join(f"{line.removeprefix(_LAYOUT)}\n" for line in lines if line.startswith(_LAYOUT))


@dataclass
class ConsoleLog:
    """Reads a console while it grows, as one step from the first byte until the machine says "done".

    A host's console includes its guests' consoles, whose panics do not end the host; a panic of the machine's
    own kernel resets the machine, which ends it.
    """

    steps: Sequence[Step]
    results: list[StepResult] = field(default_factory=list)
    crash: None = None
    partial: str = ""
    _seen: bytes = b""

    @property
    def running(self) -> Step | None:
        """The step, once anything was printed."""
        return self.steps[0] if self._seen and not self.results else None

    @property
    def console(self) -> Console:
        """What was printed so far."""
        return Console(self._seen.decode(errors="replace").replace("\r\n", "\n"))

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._seen += data
        if data and not self.results and self.console.done:
            seconds = (self.console.ticks or 0) / TICKS_PER_SECOND
            self.results.append(StepResult(self.steps[0], self._seen, 0, seconds))

    def restart(self) -> None:
        """Forget everything: the machine boots again."""
        self.results.clear()
        self._seen = b""
