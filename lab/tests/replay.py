# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An experiment's runs played from recordings: data/EXPERIMENT/RUN.log is a run's step log, RUN.events what
plugins/events.c wrote, if it watched.

The steps are those that the experiment has now, so that a recording that no longer fits is an error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recorded import DATA
from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines.machine import Machine
from trapless_lab.machines.qemu import Plugin
from trapless_lab.machines.script import Step, StepLog
from trapless_lab.machines.transcript import Transcript
from trapless_lab.progress import Progress

Forge = Callable[[str, str], str]
"""Step's name and output -> the output to use instead."""


@dataclass(frozen=True)
class Replay(Context):
    """A context that boots nothing; ``forge`` changes the steps' output."""

    experiment: str = ""
    forge: Forge = lambda _step, output: output
    booted: list[tuple[Machine, list[str]]] = field(default_factory=list)

    def run(
        self,
        label: str,
        machine: Machine,
        steps: Sequence[Step],
        *_args: Any,
        plugins: Sequence[Plugin] = (),
        **_options: Any,
    ) -> Transcript:
        recorded = DATA / self.experiment / label.replace(" ", "-")
        raw = recorded.with_suffix(".log").read_bytes()
        for plugin in plugins:
            plugin.output.write_bytes(recorded.with_suffix(".events").read_bytes())
        self.booted.append((machine, [step.name for step in steps]))
        log = StepLog(steps, raw[2:18].decode())
        log.feed(raw)
        assert log.finished, f"the recording of {label} has {len(log.results)} steps of {len(steps)}"
        forged = [replace(done, raw=self.forge(done.step.name, done.output).encode()) for done in log.results]
        return Transcript(machine, tuple(forged), (), "")


def quick(experiment: str, forge: Forge = lambda _step, output: output, plots: Album | None = None) -> Replay:
    """Return the context of the experiment's recorded quick run."""
    return Replay(quick=True, progress=Progress(), plots=plots, experiment=experiment, forge=forge)


def changed(step: str, pattern: str, new: str) -> Forge:
    """Return what puts ``new`` in place of the first match of a pattern in one step's output; the output must
    have one.
    """

    def forge(name: str, output: str) -> str:
        if name != step:
            return output
        other = re.sub(pattern, new, output, count=1, flags=re.MULTILINE)
        assert other != output
        return other

    return forge


def failing(result: Result) -> list[str]:
    """Return the names of the checks that do not hold."""
    return [check.name for check in result.checks if not check.holds]
