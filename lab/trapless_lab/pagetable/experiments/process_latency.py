# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of creating and ending a process: PiBooster's Figure 12.

Invariant: every column is the same program on the same clock, which counts instructions.
"""

from collections.abc import Mapping
from statistics import median

from ...experiment.experiment import BeforeAfter, Context, Result, Row, Target, experiment
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, ns_per_process
from ...machines.pair import PAIRS
from ...machines.script import Step
from .. import columns
from ..columns import BARE, PVH, RELAXED, STRICT, Column

# Even: on Xen every other loop costs 2 % more than the one before it, whatever is loaded, and the median of
# an even number lies between the two kinds.
REPEATS = 4
QUICK_REPEATS = 2
PROCESSES = {"fork_exit": 200, "fork_exec": 100, "fork_sh": 60}
QUICK_PROCESSES = {"fork_exit": 60, "fork_exec": 30, "fork_sh": 15}
WARM_UP = 20

# Microseconds in the PiBooster group, and how much faster than the baseline that was.
PAPER = [
    {"measure": "fork_exit", "boosted_us": 344, "faster_percent": 11},
    {"measure": "fork_exec", "boosted_us": 365, "faster_percent": 21},
    {"measure": "fork_sh", "boosted_us": 1567, "faster_percent": 17},
]

AT_MOST = {"fork_exit": 300_000, "fork_exec": 1_075_000, "fork_sh": 2_050_000}
TAX_LEFT_AT_MOST = 33.3

PVH_NOTE = (
    "pvh pays an exit for each RDTSC, which is an artefact: the emulated processor has no invariant TSC, "
    "so Xen intercepts them, and hardware would not"
)

Medians = Mapping[str, Mapping[str, int]]
"""Column -> measure -> instructions."""


def _label(measure: str, repeat: int) -> str:
    return f"{measure} {repeat + 1}"


def _steps(processes: Mapping[str, int], repeats: int) -> list[Step]:
    return [
        Step(
            _label(measure, repeat),
            f"spawn {mode} --warm-up {WARM_UP} --count {processes[measure]}",
            timeout_s=300,
        )
        for measure, mode in MODES.items()
        for repeat in range(repeats)
    ]


def _instructions(column: Column, repeats: int) -> dict[str, list[int]]:
    return {
        measure: [
            ns_per_process(column[_label(measure, repeat)], measure) // NS_PER_INSTRUCTION
            for repeat in range(repeats)
        ]
        for measure in MODES
    }


def _tax_left(medians: Medians, measure: str) -> dict[str, float]:
    """Return the key of each boosted column's share and the share."""
    return {
        boosted.replace("boosted", "tax_left_percent"): columns.tax_left_percent(
            medians["bare"][measure], medians[stock][measure], medians[boosted][measure]
        )
        for stock, boosted in columns.pairs(medians)
    }


def _row(taken: Mapping[str, Mapping[str, list[int]]], medians: Medians, measure: str) -> Row:
    stock, boosted = medians["stock"][measure], medians["boosted"][measure]
    return {
        "measure": measure,
        **{name: column[measure] for name, column in medians.items()},
        "faster_percent": round(100 * (stock - boosted) / stock, 1),
        **_tax_left(medians, measure),
        "spread": max(max(column[measure]) - min(column[measure]) for column in taken.values()),
    }


def _targets(medians: Medians) -> list[Target]:
    targets = []
    for measure in MODES:
        for _, boosted in columns.pairs(medians):
            targets.append(Target(f"{measure} {boosted}", medians[boosted][measure], AT_MOST[measure]))
        for key, share in _tax_left(medians, measure).items():
            targets.append(Target(f"{measure} {key}", share, TAX_LEFT_AT_MOST))
    return targets


@experiment(
    name="process-latency",
    accelerator="pagetable",
    title="Instructions a process",
    reproduces="PiBooster, Figure 12",
    minutes=4,
    pairs=PAIRS,
)
def process_latency(context: Context) -> Result:
    """Measure on bare metal, on a PV dom0 stock and boosted, and on a PVH dom0."""
    processes, repeats = (QUICK_PROCESSES, QUICK_REPEATS) if context.quick else (PROCESSES, REPEATS)
    machines = [BARE, STRICT, RELAXED, *([] if context.quick else [PVH])]
    found = columns.take(context, machines, _steps(processes, repeats))
    taken = columns.values(found, lambda column: _instructions(column, repeats))
    medians = {name: {m: int(median(column[m])) for m in MODES} for name, column in taken.items()}
    if context.plots:
        context.plots.bars(
            "process-latency.png",
            list(MODES),
            {name: list(column.values()) for name, column in medians.items()},
            y="instructions a process",
            title="Process creation and exit",
        )
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {repeats}; spread is the "
        "largest minus the smallest, of the worst column; tax_left_percent is (boosted - bare) / "
        f"(stock - bare); stock and boosted are one boot, before and after loading; {PVH_NOTE}",
        rows=[_row(taken, medians, m) for m in MODES],
        paper=PAPER,
        checks=[
            columns.no_slower(boosted, {m: (medians[stock][m], medians[boosted][m]) for m in MODES})
            for stock, boosted in columns.pairs(medians)
        ],
        machine=context.facts(machines),
        keys=medians,
        summary=[
            BeforeAfter(
                f"{m.replace('_', '+')}, instructions",
                f"{medians['stock'][m]:,}",
                f"{medians['boosted'][m]:,}",
                f"bare metal: {medians['bare'][m]:,}",
            )
            for m in MODES
        ],
        targets=_targets(medians),
    )
