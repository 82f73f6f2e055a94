# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What each patch of pagetable/linux-source saves: process-latency's programs, one row a patch.

Invariant: the kernels differ in the patches alone, and every row is the same programs on the same clock,
which counts instructions.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from ... import artifacts
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, experiment
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, fork_dirty_ns, ns_per_process
from ...machines.machine import Machine
from ...machines.script import Step
from .. import columns
from ..columns import RELAXED
from .process_latency import PROCESSES, QUICK_PROCESSES, QUICK_REPEATS, REPEATS, WARM_UP

PATCHES = {
    "1": "skip empty entries when a page table is pinned",
    "2": "change a page table's pinned flag with its lock held",
    "3": "write entries of an unpinned page table directly",
    "4": "map the pages around a fault in lazy MMU mode",
    "5": "write-protect by hypercall at fork, many pages at once",
    "6": "clear and flush an entry with one hypercall",
}
"""The series; a variant of the kernel has all up to its own."""

DIRTY = 1024
ROUNDS = 10
QUICK_ROUNDS = 4
MEASURES = (*MODES, f"fork_exit_{DIRTY}", f"redirty_{DIRTY}", f"copied_{DIRTY}")

SAVED = {"fork_exit": 0.95, "fork_exec": 0.95, "fork_sh": 0.95, f"fork_exit_{DIRTY}": 0.6}
"""Measure -> the share of stock's instructions that may be left."""

Costs = Mapping[str, int]
"""Measure -> instructions."""


def _machine(variant: str) -> Machine:
    # Else one table more or less, which is more than some patches save, decides.
    return replace(RELAXED, kernel=artifacts.linux_variant(variant), linux_args=("norandmaps",))


def _take(context: Context, name: str, machine: Machine) -> dict[str, list[int]]:
    processes, repeats = (QUICK_PROCESSES, QUICK_REPEATS) if context.quick else (PROCESSES, REPEATS)
    steps = {
        measure: [
            Step(
                f"{measure} {repeat + 1}",
                f"spawn {mode} --warm-up {WARM_UP} --count {processes[measure]}",
                timeout_s=300,
            )
            for repeat in range(repeats)
        ]
        for measure, mode in MODES.items()
    }
    rounds = QUICK_ROUNDS if context.quick else ROUNDS
    dirty = Step("dirty", f"forkdirty --rounds {rounds} {DIRTY}", timeout_s=300)
    script = [Step("settle", "sleep 20"), *(step for of in steps.values() for step in of), dirty]
    transcript = context.run(name, machine, script)
    taken = {
        measure: [ns_per_process(transcript[step.name], measure) // NS_PER_INSTRUCTION for step in of]
        for measure, of in steps.items()
    }
    ns = fork_dirty_ns(transcript["dirty"], DIRTY)
    # Which of the two the child's own work is counted in depends on who runs first.
    taken[f"fork_exit_{DIRTY}"] = [(ns["fork"] + ns["exit"]) // NS_PER_INSTRUCTION]
    for operation in ("redirty", "copied"):
        taken[f"{operation}_{DIRTY}"] = [ns[operation] // NS_PER_INSTRUCTION]
    return taken


def _row(name: str, costs: Costs, before: Costs) -> Row:
    saved = {f"{measure} saved": before[measure] - costs[measure] for measure in MEASURES}
    return {"kernel": name, "patch": PATCHES.get(name, ""), **costs, **saved}


@experiment(
    name="linux-series",
    accelerator="pagetable",
    title="Patches for Linux under Xen PV",
    reproduces="nothing of the papers: what the guest's module does, as patches",
    minutes=6,
)
def linux_series(context: Context) -> Result:
    """Measure a small kernel as a PV dom0 with none, one, two, ... of the patches."""
    runs = {"stock": _machine("0")} | {variant: _machine(variant) for variant in PATCHES}
    taken = {name: _take(context, name, machine) for name, machine in runs.items()}
    costs = {name: {m: int(median(found[m])) for m in MEASURES} for name, found in taken.items()}
    stock, last = costs["stock"], costs[max(PATCHES)]
    spread = max(max(found[m]) - min(found[m]) for found in taken.values() for m in MODES)
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; medians; a process's largest spread "
        f"is {spread:,}; a boot for each kernel, which has the patches up to its number; address spaces are "
        f"not randomised; dom0 with a relaxed IOMMU on stock Xen; *_{DIRTY} is forkdirty with so many pages",
        rows=[
            _row("stock", stock, stock),
            *(_row(name, costs[name], costs[before]) for before, name in pairwise(costs)),
        ],
        paper=[],
        checks=[
            *(
                columns.no_slower(name, {m: (costs[before][m], costs[name][m]) for m in MEASURES})
                for before, name in pairwise(costs)
            ),
            *(
                Check(
                    f"{m} has at most {100 * share:.0f} % left",
                    last[m] <= share * stock[m],
                    f"{100 * last[m] / stock[m]:.1f} %",
                )
                for m, share in SAVED.items()
            ),
        ],
        machine=context.facts(runs.values()),
        keys=costs,
        summary=[
            BeforeAfter(f"{m.replace('_', '+')}, instructions", f"{stock[m]:,}", f"{last[m]:,}")
            for m in MODES
        ],
    )
