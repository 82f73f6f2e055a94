# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Operations that trapless could harm: context switches, pipes, mappings, faults, system calls.

Invariant: guest/pvops.c names the operations; every column has all of them.
"""

from collections.abc import Mapping
from statistics import median

from ...errors import LabError
from ...experiment.experiment import Context, Result, experiment
from ...experiment.workload import NS_PER_INSTRUCTION, operations_ns
from ...machines.pair import PAIRS
from ...machines.script import Step
from .. import columns
from ..columns import BARE, RELAXED, STRICT, Column

REPEATS = 4
QUICK_REPEATS = 2


def _label(repeat: int) -> str:
    return f"operations {repeat + 1}"


def medians(column: Column, repeats: int) -> dict[str, float]:
    """Return the instructions of each operation."""
    runs = [operations_ns(column[_label(repeat)].result) for repeat in range(repeats)]
    if any(run.keys() != runs[0].keys() for run in runs):
        raise LabError(f"the operations differ from run to run: {[sorted(run) for run in runs]}")
    return {
        operation: round(median(run[operation] for run in runs) / NS_PER_INSTRUCTION, 1)
        for operation in runs[0]
    }


def changes(taken: Mapping[str, Mapping[str, float]], operation: str) -> dict[str, float]:
    """Return by how many percent each boosted column differs from its stock."""
    return {
        boosted.replace("boosted", "change_percent"): round(
            100 * (taken[boosted][operation] / taken[stock][operation] - 1), 2
        )
        for stock, boosted in columns.pairs(taken)
    }


@experiment(
    name="pv-operations",
    accelerator="pagetable",
    title="What else a PV guest does",
    reproduces="nothing of the papers: what must not become slower",
    minutes=3,
    pairs=PAIRS,
)
def pv_operations(context: Context) -> Result:
    """Measure on bare metal, and on a PV dom0 stock and boosted."""
    repeats = QUICK_REPEATS if context.quick else REPEATS
    machines = [BARE, STRICT, RELAXED][: 2 if context.quick else 3]
    steps = [Step(_label(repeat), "pvops", timeout_s=300) for repeat in range(repeats)]
    found = columns.take(context, machines, steps)
    taken = columns.values(found, lambda column: medians(column, repeats))
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {repeats} runs; stock and "
        "boosted are one boot, before and after loading",
        rows=[
            {
                "operation": operation,
                **{name: column[operation] for name, column in taken.items()},
                **changes(taken, operation),
            }
            for operation in taken["stock"]
        ],
        paper=[],
        checks=[
            columns.no_slower(
                boosted,
                {op: (taken[stock][op], taken[boosted][op]) for op in taken[stock]},
                columns.QUICK_SLACK if context.quick else columns.SLACK,
            )
            for stock, boosted in columns.pairs(taken)
        ],
        machine=context.facts(machines),
        keys=taken,
    )
