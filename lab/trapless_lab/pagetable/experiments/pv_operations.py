# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Operations that trapless could harm: context switches, pipes, mappings, faults, system calls.

Invariant: guest/pvops.c names the operations; every column has all of them.
"""

from collections.abc import Mapping
from statistics import median

from ...errors import LabError
from ...experiment.experiment import Context, Result, Row, experiment
from ...experiment.workload import NS_PER_INSTRUCTION, operations_counts, operations_ns
from ...machines.pair import PAIRS
from ...machines.script import Step
from .. import columns, crossings, prices
from ..columns import BARE, RELAXED, STRICT, Column
from ..crossings import Crossings, Figures

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


def _crossings(column: Column, repeats: int) -> dict[str, Crossings]:
    """Return what one of each operation has."""
    runs = [column[_label(repeat)] for repeat in range(repeats)]
    return {
        operation: sum((run.total(operation) for run in runs), Crossings()).each(repeats * times)
        for operation, times in operations_counts(runs[0].result).items()
    }


def changes(taken: Mapping[str, Mapping[str, float]], operation: str) -> dict[str, float]:
    """Return by how many percent each boosted column differs from its stock."""
    return {
        boosted.replace("boosted", "change_percent"): round(
            100 * (taken[boosted][operation] / taken[stock][operation] - 1), 2
        )
        for stock, boosted in columns.pairs(taken)
    }


def _more_rows(taken: Mapping[str, Mapping[str, float]], counted: Figures) -> list[Row]:
    operations = list(taken["stock"])
    more = [*crossings.rows(counted, operations), *prices.rows(taken, counted, operations)]
    return crossings.named(more, "operation")


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
    counted = columns.values(found, lambda column: _crossings(column, repeats))
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {repeats} runs; stock and "
        f"boosted are one boot, before and after loading; {crossings.METHOD}; {prices.METHOD}",
        rows=[
            {
                "operation": operation,
                **{name: column[operation] for name, column in taken.items()},
                **changes(taken, operation),
            }
            for operation in taken["stock"]
        ]
        + _more_rows(taken, counted),
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
        keys={
            **taken,
            **crossings.keys(counted),
            "iotlb_flushes": {
                name: sum(step.iotlb_flushes for step in column.values()) for name, column in found.items()
            },
        },
    )
