# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Experiments.

Invariant: each name stands for one experiment; the decorator alone makes an experiment known once its file is
imported (catalogue.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import host
from ..errors import LabError
from ..machines import pair, runner
from ..machines.initramfs import Tree
from ..machines.machine import Machine
from ..machines.pair import Pair
from ..machines.qemu import Plugin
from ..machines.script import Step
from ..machines.transcript import Transcript
from ..progress import Progress
from .plots import Album

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """A claim that the experiment tests on itself."""

    name: str
    holds: bool
    text: str


@dataclass(frozen=True)
class Target:
    """A number that the project aims at; missing it is a result, not a failure of the run. ``reason``: why it
    is missed, where that is known.
    """

    name: str
    measured: float
    at_most: float
    reason: str = ""

    @property
    def reached(self) -> bool:
        """Whether the number was reached."""
        return self.measured <= self.at_most


@dataclass(frozen=True)
class BeforeAfter:
    """One line of what an accelerator changes, in words for someone who has not read the paper."""

    measure: str
    before: str
    after: str
    reference: str = ""


@dataclass(frozen=True)
class Result:
    """An experiment's result; ``keys`` are further top-level keys of its JSON."""

    unit: str
    method: str
    rows: Sequence[Row]
    paper: Sequence[Row]
    checks: Sequence[Check]
    machine: Mapping[str, Any]
    keys: Mapping[str, Any] = field(default_factory=dict)
    summary: Sequence[BeforeAfter] = ()
    targets: Sequence[Target] = ()

    @property
    def holds(self) -> bool:
        """Whether every check held; targets do not count."""
        return all(check.holds for check in self.checks)


@dataclass(frozen=True)
class Context:
    """How an experiment is to run: also, on which Xen and Linux. ``resume``: machines that ran to their end,
    of which ``keep`` has the logs, are not run again.
    ``shared``: machines of other experiments run at the same time, so what is measured in this host's own
    time is left out.
    """

    quick: bool
    progress: Progress
    plots: Album | None = None
    keep: Path | None = None
    resume: bool = False
    pair: Pair = pair.DEFAULT
    shared: bool = False

    def logs(self, label: str) -> Path | None:
        """Return where the logs of one of the experiment's machines are left, if they are kept."""
        return self.keep / label.replace(" ", "-") if self.keep else None

    def run(
        self,
        label: str,
        machine: Machine,
        steps: Sequence[Step],
        files: Tree | None = None,
        *,
        modules: Sequence[str] = (),
        make_disk: Callable[[Path], Path] = runner.empty_disk,
        plugins: Sequence[Plugin] = (),
    ) -> Transcript:
        """Run steps in a machine; ``label`` names this run among the experiment's kept logs.

        A warning of either kernel is an error: the measurement is then invalid.
        """
        named = replace(machine, name=f"{machine.name} ({label})")
        transcript = runner.run(
            named if self.pair == pair.DEFAULT else self.pair.machine(named),
            [*self.pair.settling, *steps],
            files=files,
            modules=modules,
            make_disk=make_disk,
            progress=self.progress,
            work_dir=self.logs(label),
            plugins=plugins,
            resume=self.resume,
        )
        if warnings := transcript.kernel_warnings():
            raise LabError(f"the kernel complained during {label}:\n" + "\n".join(warnings))
        return transcript

    def facts(self, machines: Iterable[Machine]) -> dict[str, Any]:
        """Return the JSON's ``machine`` object for a run of this pair."""
        return machine_facts(machines, host.versions() | self.pair.versions())


@dataclass(frozen=True)
class Experiment:
    """An experiment as the registry knows it."""

    name: str
    accelerator: str
    title: str
    reproduces: str
    minutes: int
    run: Callable[[Context], Result]
    pairs: tuple[str, ...] = (pair.DEFAULT.name,)
    """Those that it runs on."""
    alone: bool = False
    """Whether it measures this host's own time, so that nothing should run beside it."""
    in_quick_report: bool = True
    """Whether a quick report has it. False for one that takes minutes even if it measures little."""


_registry: dict[str, Experiment] = {}


def experiment(
    *,
    name: str,
    accelerator: str,
    title: str,
    reproduces: str,
    minutes: int,
    pairs: Iterable[str] = (pair.DEFAULT.name,),
    alone: bool = False,
    in_quick_report: bool = True,
) -> Callable[[Callable[[Context], Result]], Callable[[Context], Result]]:
    """Register the decorated function."""

    def register(run: Callable[[Context], Result]) -> Callable[[Context], Result]:
        if name in _registry:
            raise ValueError(f"two experiments are called {name}")
        _registry[name] = Experiment(
            name, accelerator, title, reproduces, minutes, run, tuple(pairs), alone, in_quick_report
        )
        return run

    return register


def registered() -> Mapping[str, Experiment]:
    """Return every experiment whose file was imported, in order of names."""
    return dict(sorted(_registry.items()))


def machine_facts(machines: Iterable[Machine], versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON's ``machine`` object."""
    return {
        **versions,
        "machines": [
            {"name": m.name, "cpu": m.cpu, "cpus": m.cpus, "memory_mib": m.memory_mib, "icount": m.icount}
            for m in machines
        ],
    }
