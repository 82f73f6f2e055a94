# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same steps on every machine that is compared, stock and with all of trapless loaded.

Invariant: stock and boosted are the same boot, before and after loading, so they differ in nothing else;
every column has the results of the same steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..experiment.experiment import Check, Context
from ..machines.machine import MACHINES, Machine
from ..machines.script import Step, StepResult
from . import parts as pagetable

BARE, STRICT, RELAXED, PVH = (
    MACHINES[name].with_icount() for name in ("bare", "xen-strict", "xen-relaxed", "xen-pvh")
)

# The prefix of a PV machine's two columns. Strict is what the contract's names mean.
_PV = {STRICT: "", RELAXED: "relaxed_"}
_ALONE = {BARE: "bare", PVH: "pvh"}

SLACK = 1.01
"""Boosted may be slower than stock by this factor before a check fails: the clock is exact to 0.1 %, but
address
spaces are randomised, and one table more or less is 2 % of a fork."""

QUICK_SLACK = 1.03
"""The same for a quick run, in which a timer can disturb the few repetitions."""

Column = Mapping[str, StepResult]
"""Name of a step -> its result."""

Value = TypeVar("Value")


def take(context: Context, machines: Sequence[Machine], steps: Sequence[Step]) -> dict[str, Column]:
    """Run the steps on each machine; return a column for each state of each machine."""
    for machine in machines:
        if machine in _PV:
            # Fails before the first boot if one is missing.
            pagetable.files(pagetable.everything(machine), context.pair)
    columns: dict[str, Column] = {}
    for machine in machines:
        if machine in _PV:
            columns |= _before_and_after(context, machine, _PV[machine], steps)
        else:
            name = _ALONE[machine]
            transcript = context.run(name, machine, steps)
            columns[name] = {step.name: transcript[step.name] for step in steps}
    return columns


def _before_and_after(
    context: Context, machine: Machine, prefix: str, steps: Sequence[Step]
) -> dict[str, Column]:
    parts = pagetable.everything(machine)
    names = [f"{prefix}{state}" for state in ("stock", "boosted")]
    stock, boosted = ([replace(step, name=f"{name}: {step.name}") for step in steps] for name in names)
    script = [*stock, *pagetable.load_steps(parts), *boosted]
    files = pagetable.files(parts, context.pair)
    transcript = context.run(f"{prefix}stock and boosted", machine, script, files)
    return {name: {step.name: transcript[f"{name}: {step.name}"] for step in steps} for name in names}


def values(columns: Mapping[str, Column], read: Callable[[Column], Value]) -> dict[str, Value]:
    """Return ``read`` of each column."""
    return {name: read(column) for name, column in columns.items()}


def pairs(columns: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the names of one machine's columns: stock and boosted."""
    found = [(f"{prefix}stock", f"{prefix}boosted") for prefix in _PV.values()]
    return [pair for pair in found if pair[0] in columns]


def no_slower(name: str, measured: Mapping[str, tuple[float, float]], slack: float = SLACK) -> Check:
    """Check that nothing is slower boosted than stock; ``measured`` has both of each, stock first."""
    ratios = {what: boosted / stock for what, (stock, boosted) in measured.items()}
    worst = max(ratios, key=lambda what: ratios[what])
    slower = [f"{what} by {100 * (ratio - 1):.1f} %" for what, ratio in ratios.items() if ratio > slack]
    return Check(
        f"{name} is not slower",
        not slower,
        f"slower than stock: {', '.join(slower)}"
        if slower
        else f"of {len(ratios)} the worst is {worst}, {100 * (ratios[worst] - 1):+.1f} % against stock",
    )


def tax_left_percent(bare: float, stock: float, boosted: float) -> float:
    """Return the PV tax left: the remaining share of what Xen PV costs on top of bare metal."""
    return round(100 * (boosted - bare) / (stock - bare), 1)
