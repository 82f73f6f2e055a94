# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Progress for a person while several machines run at once: what is done, what runs, the time left.

Invariant: it never reaches standard output, which belongs to results, and may be called from any thread.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from .progress import Progress

Key = TypeVar("Key")
Done = TypeVar("Done")


class Unit(Progress):
    """The progress of one of several units, as reported by the machine that it boots."""

    def __init__(self, name: str, seconds: float, changed: Callable[["Unit"], None]) -> None:
        """Expect ``seconds`` for it on an idle host."""
        self.name = name
        self.expected_s = seconds
        self.doing = "waits"
        self.began: float | None = None
        self.took_s: float | None = None
        self._changed = changed

    def booting(self, machine: str, steps: int) -> None:
        """Say it."""
        self._say("boots")

    def again(self, reason: str) -> None:
        """Say it."""
        self._say("boots once more")

    def started(self, step: str) -> None:
        """Say it."""
        self._say(step)

    def _say(self, doing: str) -> None:
        self.doing = doing
        self._changed(self)

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self._say("begins")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.took_s = self.elapsed_s
        self._say("FAILED" if kind else "done")

    @property
    def elapsed_s(self) -> float:
        """When it started."""
        return time.monotonic() - self.began if self.began is not None else 0.0

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self.began is not None and self.took_s is None


class Overall:
    """Counts finished units; the base of classes that show progress."""

    PULSE_S = 0.5
    """How often ``pulse`` is to be called."""

    def __init__(self, at_a_time: int) -> None:
        self._units: list[Unit] = []
        self._at_a_time = at_a_time
        self._lock = threading.Lock()

    def add(self, name: str, seconds: float) -> Unit:
        """Add a unit."""
        unit = Unit(name, seconds, self._locked)
        self._units.append(unit)
        return unit

    def _locked(self, unit: Unit) -> None:
        with self._lock:
            self.changed(unit)

    def changed(self, unit: Unit) -> None:
        """A unit has changed."""

    def pulse(self) -> None:
        """Time has passed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def summary(self) -> str:
        """How much is done, and how long the rest takes if the host's load stays the same."""
        done = [unit for unit in self._units if unit.took_s is not None]
        said = f"{len(done)} of {len(self._units)} done"
        return said if len(done) == len(self._units) else f"{said}, {_words(self._left_s())} left"

    def _left_s(self) -> float:
        begun = [unit for unit in self._units if unit.began is not None]
        spent = sum(unit.took_s or unit.elapsed_s for unit in begun)
        expected = sum(
            unit.expected_s if unit.took_s is not None else min(unit.expected_s, unit.elapsed_s)
            for unit in begun
        )
        slower = max(spent / expected, 0.5) if expected else 1.0
        left = [
            max(unit.expected_s * slower - unit.elapsed_s, 3.0) for unit in self._units if unit.took_s is None
        ]
        return max(sum(left) / self._at_a_time, *left, 0.0)


def _words(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 50:
        return "less than a minute"
    return f"some {minutes} minutes" if minutes > 1 else "about a minute"


class PlainOverall(Overall):
    """For logs: a line for each unit that begins or ends, and one after a long time without output."""

    _SILENCE_S = 8.0

    def __init__(self, console: Console, at_a_time: int) -> None:
        super().__init__(at_a_time)
        self._console = console
        self._said = time.monotonic()

    def changed(self, unit: Unit) -> None:
        """Print that it began or ended."""
        if unit.took_s is not None:
            self._say(f"{unit.name}: {unit.doing} after {unit.took_s:.0f} s ({self.summary})")
        elif unit.doing == "begins":
            self._say(f"{unit.name}: {unit.doing}")

    def pulse(self) -> None:
        """Print what is running, if it is time to."""
        with self._lock:
            if time.monotonic() - self._said >= self._SILENCE_S:
                running = (unit for unit in self._units if unit.running)
                what = "; ".join(f"{u.name}: {u.doing}, {u.elapsed_s:.0f} s" for u in running)
                self._say(f"... {what or 'waiting'} ({self.summary})")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class BarOverall(Overall):
    """For terminals: one bar for all, and a line for each running unit."""

    def __init__(self, console: Console, at_a_time: int) -> None:
        super().__init__(at_a_time)
        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=console,
        )
        self._all = self._rich.add_task("")
        self._tasks: dict[Unit, TaskID] = {}

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()

    def changed(self, unit: Unit) -> None:
        """Update its line, or remove it after its end."""
        if unit.took_s is None:
            if unit not in self._tasks:
                self._tasks[unit] = self._rich.add_task("", total=unit.expected_s)
            return
        self._rich.remove_task(self._tasks.pop(unit))
        self._rich.console.print(
            f"{unit.name}: {unit.doing} after {unit.took_s:.0f} s", markup=False, highlight=False
        )

    def pulse(self) -> None:
        """Advance the bars."""
        with self._lock:
            done = sum(unit.took_s is not None for unit in self._units)
            self._rich.update(self._all, description=self.summary, completed=done, total=len(self._units))
            for unit, task in self._tasks.items():
                grown = min(unit.elapsed_s, unit.expected_s)
                self._rich.update(task, description=f"  {unit.name}: {unit.doing}", completed=grown)


def each_done(
    work: Mapping[Key, Callable[[], Done]], shown: Overall, at_a_time: int
) -> Iterator[tuple[Key, Future[Done]]]:
    """Do several things at once, and yield each when it has ended.

    What has not begun when the caller gives up is not done.
    """
    with ThreadPoolExecutor(at_a_time) as pool:
        waiting = {pool.submit(do): key for key, do in work.items()}
        left = set(waiting)
        try:
            while left:
                done, left = wait(left, timeout=shown.PULSE_S, return_when="FIRST_COMPLETED")
                for future in done:
                    yield waiting[future], future
                shown.pulse()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def for_terminal(at_a_time: int) -> Overall:
    """Return the class that suits standard error."""
    console = Console(stderr=True)
    return BarOverall(console, at_a_time) if console.is_terminal else PlainOverall(console, at_a_time)
