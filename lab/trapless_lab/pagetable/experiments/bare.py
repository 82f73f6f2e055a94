# SPDX-License-Identifier: Apache-2.0 OR MIT
"""PiBooster's cache on a machine without hypervisor: future work in its section 6.3.

Invariant: one boot, in which only the module is loaded and unloaded. Its counters must show that it served
allocations. The stock kernel is measured before and after, to distinguish drift from an effect. The module
may turn out to be slower.
"""

from collections.abc import Mapping
from statistics import median

from ... import artifacts, host
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, experiment, machine_facts
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, ns_per_process
from ...machines.initramfs import File
from ...machines.script import Step
from ...machines.transcript import Transcript
from .. import parts as pagetable
from .. import states
from ..columns import BARE
from .process_latency import PROCESSES, QUICK_PROCESSES, QUICK_REPEATS, REPEATS, WARM_UP

STOCK, CACHED, AGAIN = "stock", "cached", "stock_again"
HUGE_PAGES = ("always", "never")
DRIFT = 1.03

_MODULE = f"/lib/trapless/{pagetable.NAME}.ko"
_HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"
# Levels served on bare metal, too; not pmd, as huge pages share such tables, nor Xen PV's user_pgd.
_SERVED = ("pte", "pud", "pgd")

Medians = Mapping[str, Mapping[str, int]]
"""Measure -> column -> instructions."""


def _label(column: str, huge: str, measure: str, repeat: int) -> str:
    return f"{column}: huge pages {huge}, {measure} {repeat + 1}"


def _column(column: str, processes: Mapping[str, int], repeats: int) -> list[Step]:
    return [
        Step(
            _label(column, huge, measure, repeat),
            f"echo {huge} >{_HUGE} && spawn {mode} --warm-up {WARM_UP} --count {processes[measure]}",
            timeout_s=300,
        )
        for huge in HUGE_PAGES
        for measure, mode in MODES.items()
        for repeat in range(repeats)
    ]


def _instructions(transcript: Transcript, column: str, huge: str, measure: str, repeats: int) -> list[int]:
    return [
        ns_per_process(transcript[_label(column, huge, measure, i)], measure) // NS_PER_INSTRUCTION
        for i in range(repeats)
    ]


@experiment(
    name="pagetable-bare",
    accelerator="pagetable",
    title="Instructions a process on bare metal, with the cache",
    reproduces="PiBooster, section 6.3 (future work)",
    minutes=2,
)
def pagetable_bare(context: Context) -> Result:
    """Measure processes without the module, with it, and without it again."""
    processes, repeats = (QUICK_PROCESSES, QUICK_REPEATS) if context.quick else (PROCESSES, REPEATS)
    script = [
        *_column(STOCK, processes, repeats),
        Step("load", f"insmod {_MODULE} bare=1"),
        *_column(CACHED, processes, repeats),
        pagetable.pool_step(),
        Step("unload", f"rmmod {pagetable.NAME}"),
        *_column(AGAIN, processes, repeats),
    ]
    module = {_MODULE: File(artifacts.module("pagetable", "pool", pagetable.NAME))}
    transcript = context.run("bare", BARE, script, module)
    taken = {
        (huge, m): {c: _instructions(transcript, c, huge, m, repeats) for c in (STOCK, CACHED, AGAIN)}
        for huge in HUGE_PAGES
        for m in MODES
    }
    medians = {of: {c: int(median(values)) for c, values in by.items()} for of, by in taken.items()}
    sizes = pagetable.pool_sizes(transcript["pool"])
    rows: list[Row] = [
        {
            "measure": m,
            "huge_pages": huge,
            STOCK: medians[huge, m][STOCK],
            CACHED: medians[huge, m][CACHED],
            "cached_percent": states.percent(medians[huge, m][CACHED], medians[huge, m][STOCK]),
            AGAIN: medians[huge, m][AGAIN],
            "spread": max(max(values) - min(values) for values in taken[huge, m].values()),
        }
        for huge, m in taken
    ]
    drift = {of: by[AGAIN] / by[STOCK] for of, by in medians.items()}
    furthest = max(drift, key=lambda of: abs(drift[of] - 1))
    if context.plots:
        context.plots.bars(
            "pagetable-bare.png",
            list(MODES),
            {c: [medians["always", m][c] for m in MODES] for c in (STOCK, CACHED)},
            y="instructions a process",
            title="Process creation and exit on bare metal",
        )
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; median of {repeats}; cached is the "
        "module with bare=1, no hypervisor and no marks; percent is against stock, below 0 is faster; "
        "huge_pages is the kernel's setting for transparent ones; spread is the largest minus the smallest, "
        "of the worst column; one boot",
        rows=rows,
        paper=[],
        checks=[
            Check(
                "the cache served",
                all(sizes[level]["hits"] > 0 for level in _SERVED),
                ", ".join(f"{level} {sizes[level]['hits']:,}" for level in _SERVED) + " hits",
            ),
            Check(
                "stock is stock again",
                1 / DRIFT <= drift[furthest] <= DRIFT,
                f"the furthest is {furthest[1]}, {100 * (drift[furthest] - 1):+.1f} % after the unloading",
            ),
        ],
        machine=machine_facts([BARE], host.versions()),
        keys={c: {m: medians["always", m][c] for m in MODES} for c in (STOCK, CACHED)},
        summary=[
            BeforeAfter(
                f"{m.replace('_', '+')} on bare metal, instructions",
                f"{medians['always', m][STOCK]:,}",
                f"{medians['always', m][CACHED]:,}",
                f"{states.percent(medians['always', m][CACHED], medians['always', m][STOCK]):+.2f} %",
            )
            for m in MODES
        ],
    )
