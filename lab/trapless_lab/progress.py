# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Progress for a person while machines run.

Invariant: progress never reaches standard output, which belongs to results.
"""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Prints nothing; the base of classes that print progress."""

    def booting(self, machine: str, steps: int) -> None:
        """A machine starts, with so many steps to run."""

    def again(self, reason: str) -> None:
        """The run failed by its emulator, and begins anew."""

    def started(self, step: str) -> None:
        """A step started."""

    def finished(self, step: str, seconds: float) -> None:
        """A step ended, after so many seconds of guest time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class PlainProgress(Progress):
    """For logs: one line for each event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._machine = ""

    def booting(self, machine: str, steps: int) -> None:
        """Say it."""
        self._machine = machine
        self._say(f"booting, {steps} step{'s' if steps > 1 else ''} to run")

    def again(self, reason: str) -> None:
        """Say it."""
        self._say(f"once more: {reason}")

    def finished(self, step: str, seconds: float) -> None:
        """Say it."""
        self._say(f"{step} done, {seconds:.2f} s of guest time")

    def _say(self, text: str) -> None:
        self._console.print(f"{self._machine}: {text}", markup=False, highlight=False, soft_wrap=True)


class BarProgress(Progress):
    """For terminals: a bar for each machine."""

    def __init__(self, console: Console) -> None:
        self._rich = RichProgress(
            TextColumn("{task.description:<32}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._machine = ""
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()

    def booting(self, machine: str, steps: int) -> None:
        """Begin the machine's bar."""
        self._machine = machine
        self._task = self._rich.add_task(f"{machine}: booting", total=steps)

    def again(self, reason: str) -> None:
        """Print it above the bars."""
        self._rich.console.print(f"{self._machine}, once more: {reason}", markup=False, highlight=False)

    def started(self, step: str) -> None:
        """Name the step on the bar."""
        if self._task is not None:
            self._rich.update(self._task, description=f"{self._machine}: {step}")

    def finished(self, step: str, seconds: float) -> None:
        """Advance the bar."""
        if self._task is not None:
            self._rich.advance(self._task)


def for_terminal() -> Progress:
    """Return the progress that suits standard error."""
    console = Console(stderr=True)
    return BarProgress(console) if console.is_terminal else PlainProgress(console)
