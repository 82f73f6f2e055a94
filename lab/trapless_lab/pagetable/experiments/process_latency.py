# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of creating and ending a process: PiBooster's Figure 12.

Invariant: every column is the same program on the same clock, which counts instructions. What an old model of
a processor alone causes is no gain: on qemu64 the hypercalls for FS and GS, which a processor with FSGSBASE
does not need, count after loading as if all of them were left.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from ...experiment.experiment import BeforeAfter, Context, Result, Row, Target, experiment
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, ns_per_process
from ...machines.pair import PAIRS
from ...machines.script import Step
from .. import columns, crossings, prices
from .. import parts as pagetable
from ..columns import BARE, ONE_VENDOR, PVH, RELAXED, STRICT, TWO_CPUS, VENDORS, Column
from ..crossings import Crossings, Figures

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
TAX_LEFT_AT_MOST = {"fork_exit": 20, "fork_exec": 22, "fork_sh": 24}
ENTRIES_AT_MOST, FLUSHES_AT_MOST = 27, 5
"""Of a fork+exit."""

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
            ns_per_process(column[_label(measure, repeat)].result, measure) // NS_PER_INSTRUCTION
            for repeat in range(repeats)
        ]
        for measure in MODES
    }


def _crossings(column: Column, processes: Mapping[str, int], repeats: int) -> dict[str, Crossings]:
    """Return what one process has of each."""
    labels = {measure: [_label(measure, repeat) for repeat in range(repeats)] for measure in MODES}
    return {
        measure: sum((column[label].total(measure) for label in labels[measure]), Crossings()).each(
            repeats * processes[measure]
        )
        for measure in MODES
    }


def _iotlb(column: Column, processes: Mapping[str, int], repeats: int) -> dict[str, float]:
    """Return the IOTLB flushes of one process, those that warm up among them."""
    return {
        measure: round(
            sum(column[_label(measure, repeat)].iotlb_flushes for repeat in range(repeats))
            / (repeats * (WARM_UP + processes[measure])),
            2,
        )
        for measure in MODES
    }


def claimed(stock: Crossings, boosted: Crossings, real: bool) -> float:
    """Return the crossings to claim: on a model of no real processor none of those for FS and GS has gone."""
    return round(boosted.entries + (0 if real else max(0, stock.segment_bases - boosted.segment_bases)), 1)


def _tax_left(medians: Medians, measure: str) -> dict[str, float]:
    """Return the key of each boosted column's share and the share."""
    return {
        boosted.replace("boosted", "tax_left_percent"): columns.tax_left_percent(
            medians[columns.bare_of(stock)][measure], medians[stock][measure], medians[boosted][measure]
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


def _targets(medians: Medians, counted: Figures) -> list[Target]:
    targets = []
    for measure in MODES:
        for stock, boosted in columns.pairs(medians):
            if columns.bare_of(stock) == "bare":
                targets.append(Target(f"{measure} {boosted}", medians[boosted][measure], AT_MOST[measure]))
        for key, share in _tax_left(medians, measure).items():
            targets.append(Target(f"{measure} {key}", share, TAX_LEFT_AT_MOST[measure]))
    for stock, boosted in columns.pairs(medians):
        before, after = counted[stock]["fork_exit"], counted[boosted]["fork_exit"]
        entries = claimed(before, after, real=columns.bare_of(stock) != "bare")
        targets.append(Target(f"crossings of fork_exit {boosted}", entries, ENTRIES_AT_MOST))
        targets.append(Target(f"TLB flushes of fork_exit {boosted}", after.flushes, FLUSHES_AT_MOST))
    return targets


def _two_cpus(context: Context, processes: Mapping[str, int]) -> Figures:
    """Return what a process has while another program runs on another CPU, stock and boosted."""
    busy = "(while :; do :; done) & busy=$!;"
    steps = [
        Step(name, f"{busy} {step.command}; done=$?; kill $busy; exit $done", timeout_s=300)
        for name, step in zip(MODES, _steps(processes, 1), strict=True)
    ]
    parts = pagetable.everything(TWO_CPUS)
    script = [
        *(replace(step, name=f"stock: {step.name}") for step in steps),
        *pagetable.load_steps(parts),
        *(replace(step, name=f"boosted: {step.name}") for step in steps),
    ]
    found = crossings.run(context, "two CPUs", TWO_CPUS, script, pagetable.files(parts, context.pair)).steps
    return {
        f"two_cpus_{state}": {m: found[f"{state}: {m}"].total(m).each(processes[m]) for m in MODES}
        for state in ("stock", "boosted")
    }


@experiment(
    name="process-latency",
    accelerator="pagetable",
    title="Instructions a process",
    reproduces="PiBooster, Figure 12",
    minutes=9,
    pairs=PAIRS,
)
def process_latency(context: Context) -> Result:
    """Measure on bare metal, on a PV dom0 stock and boosted, on three processors; and on a PVH dom0.

    A quick run has two processors, and no PVH dom0.
    """
    processes, repeats = (QUICK_PROCESSES, QUICK_REPEATS) if context.quick else (PROCESSES, REPEATS)
    machines = [BARE, STRICT, RELAXED, *(ONE_VENDOR if context.quick else [*VENDORS, PVH])]
    found = columns.take(context, machines, _steps(processes, repeats))
    taken = columns.values(found, lambda column: _instructions(column, repeats))
    medians = {name: {m: int(median(column[m])) for m in MODES} for name, column in taken.items()}
    counted = columns.values(found, lambda column: _crossings(column, processes, repeats))
    iotlb = columns.values(found, lambda column: _iotlb(column, processes, repeats))
    vendors = [name for name in medians if name.partition("_")[0] in columns.PROCESSORS]
    beside: Figures = {} if context.quick else _two_cpus(context, QUICK_PROCESSES)
    if context.plots:
        context.plots.bars(
            "process-latency.png",
            list(MODES),
            {name: list(column.values()) for name, column in medians.items() if name not in vendors},
            y="instructions a process",
            title="Process creation and exit",
        )
        context.plots.bars(
            "process-latency-crossings.png",
            list(MODES),
            {
                name: [counted[name][m].entries for m in MODES]
                for name in ("stock", "boosted", *vendors)
                if "bare" not in name
            },
            y="crossings into Xen a process",
            title="How often a process enters Xen",
        )
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {repeats}; spread is the "
        "largest minus the smallest, of the worst column; tax_left_percent is (boosted - bare) / (stock - "
        "bare); stock and boosted are one boot, before and after loading; epyc and skylake are QEMU's models "
        f"of these processors, the others are qemu64; {crossings.METHOD}; two_cpus is without a clock, "
        "beside a busy program, to count the CPUs that are interrupted to flush their TLBs (flush_ipis); "
        f"{prices.METHOD}; {PVH_NOTE}",
        rows=columns.folded(
            [
                *(_row(taken, medians, m) for m in MODES),
                *crossings.rows({**counted, **beside}, list(MODES)),
                *(
                    {"measure": f"{m}: IOTLB flushes", **{name: each[m] for name, each in iotlb.items()}}
                    for m in MODES
                ),
                *(
                    {"measure": f"{m}: CPUs interrupted to flush"}
                    | {name: figures[m].flush_ipis for name, figures in beside.items()}
                    for m in MODES
                ),
                *prices.rows(medians, counted, list(MODES)),
            ]
        ),
        paper=PAPER,
        checks=[
            columns.no_slower(boosted, {m: (medians[stock][m], medians[boosted][m]) for m in MODES})
            for stock, boosted in columns.pairs(medians)
        ],
        machine=context.facts(machines),
        keys={**medians, **crossings.keys({**counted, **beside}), "iotlb_flushes": iotlb},
        summary=[
            BeforeAfter(
                f"{m.replace('_', '+')}, instructions",
                f"{medians['stock'][m]:,}",
                f"{medians['boosted'][m]:,}",
                f"bare metal: {medians['bare'][m]:,}",
            )
            for m in MODES
        ]
        + [
            BeforeAfter(
                f"crossings into Xen of a fork+exit, {words}",
                f"{counted[f'{name}stock']['fork_exit'].entries:.1f}",
                f"{counted[f'{name}boosted']['fork_exit'].entries:.1f}",
                f"TLB flushes: {counted[f'{name}stock']['fork_exit'].flushes:.0f}, "
                f"then {counted[f'{name}boosted']['fork_exit'].flushes:.0f}",
            )
            for name, words in (("epyc_", "as on an EPYC"), ("skylake_", "as on a Skylake"))
            if f"{name}stock" in counted
        ],
        targets=_targets(medians, counted),
    )
