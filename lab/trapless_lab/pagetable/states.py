# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same steps in each state of one machine: stock, with PiBooster alone, and with everything.

Invariant: the states are in one boot, in this order, so they differ only in what was loaded; each state
includes the one before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..machines.initramfs import File
from ..machines.script import Step, StepResult
from ..machines.transcript import Transcript
from . import parts as pagetable

STOCK, PIBOOSTER, EVERYTHING = "stock", "piboost", "boosted"
STATES = (STOCK, PIBOOSTER, EVERYTHING)

_PARTS = pagetable.PIBOOSTER_ALONE
_ALL_ON = Step("everything on", f"for switch in {pagetable.PVMMU_SWITCHES}/*; do echo 1 >$switch; done")


def steps(measured: Sequence[Step], states: Sequence[str] = STATES) -> list[Step]:
    """Return the steps in each of ``states``, and between them the steps to the next state."""
    script: list[Step] = []
    for state in STATES:
        script += {STOCK: [], PIBOOSTER: pagetable.load_steps(_PARTS), EVERYTHING: [_ALL_ON]}[state]
        if state in states:
            script += [replace(step, name=f"{state}: {step.name}") for step in measured]
    return script


def files() -> dict[str, File]:
    """Return the guest files that the states need."""
    return pagetable.files(_PARTS)


def result(transcript: Transcript, state: str, step: str) -> StepResult:
    """Return a step's result in a state."""
    return transcript[f"{state}: {step}"]


def percent(value: float, stock: float) -> float:
    """Return how much more than stock something is."""
    return round(100 * (value - stock) / stock, 2)


def percents(means: Mapping[str, float]) -> dict[str, float]:
    """Return how much more than stock each other state is."""
    return {f"{state}_percent": percent(means[state], means[STOCK]) for state in means if state != STOCK}
