# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the one console of a Power machine shows: of its programs, of the guests of its KVM, and of its end.

Invariant: the machine has ended well only if its init says "done"; what a program of a host prints has the
program's label before it.
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
    """What a workload took: ticks of the timebase, of so many repetitions."""

    ticks: int
    count: int

    @property
    def instructions(self) -> float:
        """Return the instructions of one repetition."""
        return self.ticks / self.count / TICKS_PER_INSTRUCTION


@dataclass(frozen=True)
class Console:
    """All that a machine's console showed."""

    text: str

    def of(self, label: str) -> "Console":
        """Return what one program of a host printed."""
        prefix = f"{label}| "
        lines = (line for line in self.text.splitlines() if line.startswith(prefix))
        return Console("".join(f"{line.removeprefix(prefix)}\n" for line in lines))

    @property
    def results(self) -> dict[str, Measured]:
        """Return what workloads measured, by name."""
        return {name: Measured(int(ticks), int(count)) for name, ticks, count in _RESULT.findall(self.text)}

    @property
    def done(self) -> bool:
        """Whether all was done that was asked for."""
        return _DONE.search(self.text) is not None

    @property
    def ticks(self) -> int | None:
        """Return the machine's clock when its last program was about to end."""
        lasted = _LASTED.search(self.text)
        return int(lasted[1]) if lasted else None

    @property
    def instructions(self) -> float:
        """Return how many the machine had executed, by its clock, when its last program was about to end."""
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
        """Return how often a guest missed the shadow TLB alone, and not its own."""
        counts = self.statistics(label)
        return counts["itlb_virt_miss_exits"] + counts["dtlb_virt_miss_exits"]

    def layout(self, label: str) -> str:
        """Return how a guest's traced blocks were split, as KVM takes it back."""
        lines = self.of(f"{label}.statistics").text.splitlines()
        return "".join(f"{line.removeprefix(_LAYOUT)}\n" for line in lines if line.startswith(_LAYOUT))


@dataclass
class ConsoleLog:
    """Reads a console while it grows: all is one step, from the first byte until the machine says "done".

    A host's console has those of its guests, whose panics are theirs; a kernel that panics itself resets the
    machine, which ends it.
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
