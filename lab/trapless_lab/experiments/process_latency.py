# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What creating and ending a process costs: PiBooster's Figure 12.

Invariant: the three machines run the same program on the same clock, which counts instructions.
"""

from statistics import median

from .. import host, pagetable, plots
from ..experiment import BeforeAfter, Check, Context, Result, experiment, machine_facts
from ..initramfs import Tree
from ..machine import MACHINES, Machine
from ..script import Step
from ..transcript import Transcript
from ..workload import MODES, NS_PER_INSTRUCTION, ns_per_process

REPEATS = 3
PROCESSES = {"fork_exit": 400, "fork_exec": 200, "fork_sh": 100}
QUICK_PROCESSES = {"fork_exit": 60, "fork_exec": 30, "fork_sh": 15}

# Microseconds in the PiBooster group, and how much faster than the baseline that was.
PAPER = [
    {"measure": "fork_exit", "boosted_us": 344, "faster_percent": 11},
    {"measure": "fork_exec", "boosted_us": 365, "faster_percent": 21},
    {"measure": "fork_sh", "boosted_us": 1567, "faster_percent": 17},
]


def _label(measure: str, repeat: int) -> str:
    return f"{measure} {repeat + 1}"


def _measure_steps(quick: bool) -> list[Step]:
    processes = QUICK_PROCESSES if quick else PROCESSES
    return [
        Step(_label(measure, repeat), f"spawn {mode} -n {processes[measure]}", timeout_s=300)
        for measure, mode in MODES.items()
        for repeat in range(REPEATS)
    ]


def _instructions(transcript: Transcript, measure: str) -> list[int]:
    results = (transcript[_label(measure, repeat)] for repeat in range(REPEATS))
    return [ns_per_process(result, measure) // NS_PER_INSTRUCTION for result in results]


@experiment(
    name="process-latency",
    accelerator="pagetable",
    title="Instructions a process",
    reproduces="PiBooster, Figure 12",
    minutes=2,
)
def process_latency(context: Context) -> Result:
    """Measure on bare metal, on stock Xen, and with the pool."""
    bare, xen = MACHINES["bare"].with_icount(), MACHINES["xen-strict"].with_icount()
    boosted_files = pagetable.files()
    measure = _measure_steps(context.quick)
    plan: list[tuple[str, Machine, list[Step], Tree]] = [
        ("bare", bare, measure, {}),
        ("stock", xen, measure, {}),
        ("boosted", xen, [*pagetable.load_steps(), *measure], boosted_files),
    ]
    taken: dict[str, dict[str, list[int]]] = {}
    for label, machine, steps, files in plan:
        transcript = context.run(label, machine, steps, files)
        taken[label] = {measure: _instructions(transcript, measure) for measure in MODES}

    medians = {label: {m: int(median(taken[label][m])) for m in MODES} for label in taken}
    rows = []
    for m in MODES:
        stock, boosted = medians["stock"][m], medians["boosted"][m]
        spread = max(max(taken[label][m]) - min(taken[label][m]) for label in taken)
        rows.append(
            {
                "measure": m,
                **{label: medians[label][m] for label in taken},
                "faster_percent": round(100 * (stock - boosted) / stock, 1),
                "spread": spread,
            }
        )
    if context.plots:
        plots.bars(
            context.plots / "process-latency.png",
            list(MODES),
            {label: list(medians[label].values()) for label in taken},
            y="instructions a process",
            title="Process creation and exit",
        )
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {REPEATS}; "
        "spread is the largest minus the smallest, of the worst machine",
        rows=rows,
        paper=PAPER,
        checks=[
            Check(
                f"{m} boosted",
                medians["boosted"][m] <= medians["stock"][m],
                f"{medians['boosted'][m]:,} instructions are no more than stock's {medians['stock'][m]:,}",
            )
            for m in MODES
        ],
        machine=machine_facts((bare, xen), host.versions()),
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
    )
