# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of creating and ending a process in a PV domU, which has no IOMMU and does not control dom0.

Invariant: every column but bare metal's is the same domU in the same boot, so they differ only in what was
loaded before; dom0 sleeps while the domU is measured.
"""

from collections.abc import Mapping
from statistics import median

from ... import host
from ...experiment.experiment import (
    BeforeAfter,
    Check,
    Context,
    Result,
    Row,
    Target,
    experiment,
    machine_facts,
)
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, ns_per_process
from ...machines import domu
from ...machines.domu import DomU
from ...machines.script import Step
from .. import columns, crossings, domu_states, prices
from .. import parts as pagetable
from ..columns import BARE, RELAXED, Column
from ..crossings import Crossings
from .process_latency import AT_MOST, PROCESSES, QUICK_PROCESSES, QUICK_REPEATS, REPEATS, WARM_UP

# Debian's default. In neither mode does the IOMMU follow a domU's tables.
MACHINE = RELAXED
COLUMNS = domu_states.STATES
ALL = ("bare", *COLUMNS)
TAX_LEFT_AT_MOST = 25

TSC_NOTE = (
    "the domU has tsc_mode native: the emulated processor has no invariant TSC, so by default Xen would "
    "emulate each RDTSC of a domU, but not dom0's; on hardware with one it emulates none"
)

# Of about 240,000 instructions that stock Xen spends on zero entries in a fork and exit.
SAVED_AT_LEAST = 150_000


def _label(column: str, measure: str, repeat: int) -> str:
    return f"{column} {measure} {repeat + 1}"


def _measure(column: str, processes: Mapping[str, int], repeats: int) -> list[Step]:
    return [
        Step(
            _label(column, measure, repeat),
            f"spawn {mode} --warm-up {WARM_UP} --count {processes[measure]}",
            timeout_s=300,
        )
        for measure, mode in MODES.items()
        for repeat in range(repeats)
    ]


def _instructions(steps: Column, column: str, measure: str, repeats: int) -> list[int]:
    return [
        ns_per_process(steps[_label(column, measure, repeat)].result, measure) // NS_PER_INSTRUCTION
        for repeat in range(repeats)
    ]


def _crossings(
    steps: Column, column: str, processes: Mapping[str, int], repeats: int
) -> dict[str, Crossings]:
    """Return what one process has of each."""
    return {
        m: sum((steps[_label(column, m, r)].total(m) for r in range(repeats)), Crossings()).each(
            repeats * processes[m]
        )
        for m in MODES
    }


@experiment(
    name="domu-latency",
    accelerator="pagetable",
    title="Instructions a process, in a PV domU",
    reproduces="nothing: the papers measure dom0 only",
    minutes=2,
)
def domu_latency(context: Context) -> Result:
    """Measure in a stock domU, then with the payload in Xen, then also with the guest module in the domU."""
    processes, repeats = (QUICK_PROCESSES, QUICK_REPEATS) if context.quick else (PROCESSES, REPEATS)
    guest = DomU(files=domu_states.files_inside(), programs=("spawn",), native_tsc=True)
    alone = crossings.run(context, "bare", BARE, _measure("bare", processes, repeats)).steps
    run = crossings.run(
        context,
        "domU",
        MACHINE,
        domu_states.steps(guest, {column: _measure(column, processes, repeats) for column in COLUMNS}),
        domu_states.files(guest),
        modules=domu.MODULES,
    )
    domu.require_quiet(run.transcript)
    steps = {**alone, **run.steps}
    taken = {c: {m: _instructions(steps, c, m, repeats) for m in MODES} for c in ALL}
    medians = {c: {m: int(median(values)) for m, values in column.items()} for c, column in taken.items()}
    counted = {c: _crossings(steps, c, processes, repeats) for c in ALL}
    saved = medians["stock"]["fork_exit"] - medians["payload"]["fork_exit"]
    spread = {m: max(max(taken[c][m]) - min(taken[c][m]) for c in ALL) for m in MODES}
    if context.plots:
        context.plots.bars(
            "domu-latency.png",
            list(MODES),
            {name: list(column.values()) for name, column in medians.items()},
            y="instructions a process",
            title="Process creation and exit in a PV domU",
        )
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {repeats}; spread is the "
        "largest minus the smallest, of the worst column; payload is what the domU gains unasked, boosted "
        f"has {pagetable.PVMMU} in the domU besides; one boot; bare is Linux alone; tax_left_percent is "
        f"(boosted - bare) / (stock - bare); {TSC_NOTE}; {crossings.METHOD}; {prices.METHOD}",
        rows=[
            *(_row(medians, spread, m) for m in MODES),
            *crossings.rows(counted, list(MODES)),
            *prices.rows(medians, counted, list(MODES)),
        ],
        paper=[],
        checks=[
            *(
                columns.no_slower(c, {m: (medians["stock"][m], medians[c][m]) for m in MODES})
                for c in COLUMNS[1:]
            ),
            Check(
                "a domU gains unasked",
                saved >= SAVED_AT_LEAST,
                f"the payload alone saves {saved:,} instructions of fork+exit, {SAVED_AT_LEAST:,} wanted",
            ),
        ],
        machine=machine_facts([BARE, MACHINE], host.versions()),
        keys={
            **medians,
            **crossings.keys(counted),
            "iotlb_flushes": {
                c: {m: sum(steps[_label(c, m, r)].iotlb_flushes for r in range(repeats)) for m in MODES}
                for c in ALL
            },
        },
        summary=[
            BeforeAfter(
                f"{m.replace('_', '+')} in a domU, instructions",
                f"{medians['stock'][m]:,}",
                f"{medians['boosted'][m]:,}",
                f"with the payload alone: {medians['payload'][m]:,}",
            )
            for m in MODES
        ],
        targets=[
            *(Target(f"{m} boosted", medians["boosted"][m], AT_MOST[m]) for m in MODES),
            *(
                Target(f"{m} tax_left_percent", _tax_left(medians, "boosted", m), TAX_LEFT_AT_MOST)
                for m in MODES
            ),
        ],
    )


def _tax_left(medians: Mapping[str, Mapping[str, int]], column: str, measure: str) -> float:
    return columns.tax_left_percent(*(medians[c][measure] for c in ("bare", "stock", column)))


def _row(medians: Mapping[str, Mapping[str, int]], spread: Mapping[str, int], measure: str) -> Row:
    stock, boosted = medians["stock"][measure], medians["boosted"][measure]
    return {
        "measure": measure,
        **{column: medians[column][measure] for column in ALL},
        "faster_percent": round(100 * (stock - boosted) / stock, 1),
        "payload_tax_left_percent": _tax_left(medians, "payload", measure),
        "tax_left_percent": _tax_left(medians, "boosted", measure),
        "spread": spread[measure],
    }
