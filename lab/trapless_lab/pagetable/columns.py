# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same steps on every machine that is compared, stock and with all of trapless loaded.

Invariant: stock and boosted are the same boot, before and after loading, so they differ in nothing else;
every column has the results of the same steps, and what crossings.py counted in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..experiment.experiment import Check, Context, Row
from ..machines.machine import MACHINES, Machine
from ..machines.script import Step
from . import crossings
from . import parts as pagetable
from .crossings import Counted

BARE, STRICT, RELAXED, PVH = (
    MACHINES[name].with_icount() for name in ("bare", "xen-strict", "xen-relaxed", "xen-pvh")
)

PROCESSORS = {"epyc": "EPYC,-smap,-monitor", "skylake": "Skylake-Client-noTSX-IBRS,-smap"}
"""A processor of each vendor, by the prefix of its columns: QEMU's model of it without SMAP, with which a PV
dom0 crashes in QEMU 7.2, and without MWAIT, which faults there as Xen 4.20 idles by it. Columns without a
prefix are of qemu64, which is like no real one.
"""

_BARE_OF = {name: BARE.with_cpu(cpu) for name, cpu in PROCESSORS.items()}
_STRICT_OF = {name: STRICT.with_cpu(cpu) for name, cpu in PROCESSORS.items()}

VENDORS = [machine for name in PROCESSORS for machine in (_BARE_OF[name], _STRICT_OF[name])]
"""Bare metal and a strict dom0 on each processor."""

ONE_VENDOR = [_BARE_OF["epyc"], _STRICT_OF["epyc"]]
"""Those on one of them, for a quick run."""

TWO_CPUS = MACHINES["xen-strict-smp"].with_turns()
"""Not for times: the clock of two CPUs is the host's."""

# The prefix of a PV machine's two columns. Strict is what the contract's names mean.
_PV = {STRICT: "", RELAXED: "relaxed_", **{machine: f"{name}_" for name, machine in _STRICT_OF.items()}}
_ALONE = {BARE: "bare", PVH: "pvh", **{machine: f"{name}_bare" for name, machine in _BARE_OF.items()}}

SLACK = 1.01
"""Boosted may be slower than stock by this factor before a check fails: the clock is exact to 0.1 %, but
address
spaces are randomised, and one table more or less is 2 % of a fork."""

QUICK_SLACK = 1.03
"""The same for a quick run, in which a timer can disturb the few repetitions."""

Column = Mapping[str, Counted]
"""Name of a step -> its result, and what was counted."""

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
            columns[name] = crossings.run(context, name, machine, steps).steps
    return columns


def _before_and_after(
    context: Context, machine: Machine, prefix: str, steps: Sequence[Step]
) -> dict[str, Column]:
    parts = pagetable.everything(machine)
    names = [f"{prefix}{state}" for state in ("stock", "boosted")]
    stock, boosted = ([replace(step, name=f"{name}: {step.name}") for step in steps] for name in names)
    script = [*stock, *pagetable.load_steps(parts), *boosted]
    files = pagetable.files(parts, context.pair)
    found = crossings.run(context, f"{prefix}stock and boosted", machine, script, files).steps
    return {name: {step.name: found[f"{name}: {step.name}"] for step in steps} for name in names}


def values(columns: Mapping[str, Column], read: Callable[[Column], Value]) -> dict[str, Value]:
    """Return ``read`` of each column."""
    return {name: read(column) for name, column in columns.items()}


def bare_of(stock: str) -> str:
    """Return the name of the column to compare a machine's stock one with: bare metal with its processor."""
    prefix = stock.removesuffix("stock")
    return f"{prefix}bare" if prefix.removesuffix("_") in PROCESSORS else "bare"


def pairs(columns: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the names of one machine's columns: stock and boosted."""
    found = [(f"{prefix}stock", f"{prefix}boosted") for prefix in _PV.values()]
    return [pair for pair in found if pair[0] in columns]


def folded(rows: Sequence[Row]) -> list[Row]:
    """Return rows with a machine's columns below the others' instead of beside them."""
    found: list[Row] = []
    for row in rows:
        left = dict(row)
        below = []
        for prefix in (*PROCESSORS, "two_cpus"):
            own = {key: left.pop(key) for key in row if key.startswith(f"{prefix}_")}
            values = {key.removeprefix(f"{prefix}_"): value for key, value in own.items()}
            below += [{"measure": f"{row['measure']}, {prefix}", **values}] if values else []
        found += [left, *below] if len(left) > 1 else below
    return found


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
