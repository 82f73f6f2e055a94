# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of tracing for a translated guest by the size of its shadow TLB entries: the paper's three-way
trade-off between exits, tracing faults and TLB entries.

Invariant: the variants differ only in parameters of KVM. Blocks of a fixed size are never split; with the
data cache, loads that keep faulting read a copy of their data; adaptive blocks begin large and are split
where data is accessed.
"""

from collections.abc import Mapping
from typing import Any

from ...experiment.experiment import BeforeAfter, Check, Context, Result, experiment
from .. import machine as power
from ..console import NS_PER_INSTRUCTION, Console
from ..machine import MODES, How, Vm
from .exits import TABLE

FIXED_KB = (4, 64, 1024, 4096)
# Sizes with many traced loads, and how many loads of one address precede a load's translation.
CACHED_KB = (1024, 4096)
READ_CACHE = 16
ADAPTIVE = "adaptive"


def fixed(kb: int) -> str:
    """Return parameters for entries of one size."""
    return f"kvm.bt_first_kb={kb} kvm.bt_faults_to_split=0"


VARIANTS: Mapping[str, str] = {
    **{f"fixed_{kb}_kb": fixed(kb) for kb in FIXED_KB},
    **{f"fixed_{kb}_kb_cached": f"{fixed(kb)} kvm.bt_read_cache={READ_CACHE}" for kb in CACHED_KB},
    ADAPTIVE: "",
}

# Seconds (the first three) and milliseconds; BT-Trace has no resizing, Avoid-RPF copies data that is read,
# Adapt-TLB resizes.
PAPER = {
    "boot": (13.10, 12.24, 13.29),
    "echo_spawn": (8.25, 7.26, 7.93),
    "find": (0.92, 0.71, 1.15),
    "syscall": (0.008, 0.003, 0.001),
    "stat": (0.012, 0.007, 0.006),
    "fstat": (0.009, 0.004, 0.004),
    "open_close": (0.024, 0.014, 0.032),
    "signal_install": (0.009, 0.004, 0.004),
    "pipe": (0.054, 0.034, 0.135),
    "fork": (2.240, 2.061, 2.823),
    "exec": (8.384, 7.533, 8.849),
    "sh": (17.615, 16.327, 21.813),
}
WORKLOADS = TABLE
# Which large entries evict each other is chance: a workload is this much slower if its two hottest ones do.
UNLUCKY, UNLUCKY_AT_MOST = 1, 1.25

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction, one huge page of 64 MiB behind the guest; "
    "faults, misses and splits are of a guest that only boots, by KVM's own counters"
)


def take(context: Context, variant: str, arguments: str) -> Console:
    """Run a guest that only boots, and one that runs the workloads."""
    how = How(context.progress, context.logs(variant))
    runs = {"boot": "boot", "all": ",".join(WORKLOADS)}
    vms = [Vm(label, MODES["inplace"], f"run={run} {arguments}") for label, run in runs.items()]
    return power.in_host(power.one_after_another(vms), arguments=VARIANTS[variant], label=variant, how=how)


def row(variant: str, console: Console) -> dict[str, Any]:
    """Return the instructions of each workload, and the counts of tracing at boot."""
    results, counts = console.of("all").results, console.statistics("boot")
    return {
        "variant": variant,
        **{name: round(results[name].instructions) for name in WORKLOADS},
        "traced": console.traced("boot"),
        "traced_loads": counts["bt_traced_loads"],
        "loads_translated": counts["bt_reads_made"],
        "tlb_misses": console.shadow_misses("boot"),
        "splits": counts["bt_splits"],
    }


@experiment(
    name="power-tracing",
    accelerator="power",
    title="A translated guest by the size of its TLB entries: instructions",
    reproduces='In-place translation, "Tracing overhead optimizations", "Adaptive TLB Resizing", '
    '"Avoiding Read Page Faults"',
    minutes=3,
)
def power_tracing(context: Context) -> Result:
    """Measure fixed sizes of shadow TLB entries over traced pages, a data cache, the adaptive policy."""
    arguments = f"scale={'quick' if context.quick else 'full'}"
    rows = [row(variant, take(context, variant, arguments)) for variant in VARIANTS]
    *others, adaptive = rows
    by_name = {one["variant"]: one for one in rows}
    pairs = [(by_name[f"fixed_{kb}_kb"], by_name[f"fixed_{kb}_kb_cached"]) for kb in CACHED_KB]
    best = min(others, key=lambda one: one["boot"])
    alone = [by_name[f"fixed_{kb}_kb"] for kb in FIXED_KB]
    behind = {name: adaptive[name] / min(one[name] for one in alone) for name in WORKLOADS}
    slower = [f"{name} by {100 * (ratio - 1):.0f} %" for name, ratio in behind.items() if ratio > 1.02]
    return Result(
        unit="instructions",
        method=METHOD,
        rows=rows,
        paper=[
            dict(zip(("workload", "bt_trace", "avoid_rpf", "adapt_tlb"), (name, *figures), strict=True))
            for name, figures in PAPER.items()
        ],
        checks=[
            Check(
                "adaptive is as good as any fixed size alone",
                len(slower) <= UNLUCKY and max(behind.values()) <= UNLUCKY_AT_MOST,
                f"over 2 % behind the best fixed size: {', '.join(slower) or 'none'} of {len(WORKLOADS)}",
            ),
            Check(
                "fixed sizes are not split",
                not any(one["splits"] for one in others) and adaptive["splits"] > 0,
                f"{adaptive['splits']} splits, all of the adaptive policy",
            ),
            Check(
                "the data cache spares traced loads",
                all(cached["traced_loads"] < without["traced_loads"] for without, cached in pairs),
                "; ".join(
                    f"{cached['variant']}: {without['traced_loads']:,} loads, then {cached['traced_loads']:,}"
                    for without, cached in pairs
                ),
            ),
        ],
        machine=power.machine_facts(),
        keys={one["variant"]: {name: one[name] for name in WORKLOADS} for one in rows},
        summary=[
            BeforeAfter(
                "boot, instructions",
                f"{best['boot']:,}",
                f"{adaptive['boot']:,}",
                f"before: the best fixed size, {best['variant']}",
            )
        ],
    )
