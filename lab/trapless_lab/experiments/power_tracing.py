# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tracing costs a translated guest by how large its shadow TLB entries are: the paper's three-way
trade-off between exits, tracing faults and TLB entries.

Invariant: the variants differ in parameters of KVM alone. A fixed size is never split; the adaptive one
begins large and is split where data is touched.
"""

from collections.abc import Mapping
from typing import Any

from .. import host, power
from ..experiment import BeforeAfter, Check, Context, Result, experiment
from ..power import MODES, Console, How, Vm

FIXED_KB = (4, 64, 1024, 4096)
ADAPTIVE = "adaptive"
VARIANTS: Mapping[str, str] = {
    **{f"fixed_{kb}_kb": f"kvm.bt_first_kb={kb} kvm.bt_faults_to_split=0" for kb in FIXED_KB},
    ADAPTIVE: "",
}
WORKLOADS = ("boot", "syscall", "pipe", "fork", "exec")

# Seconds (boot) and milliseconds; BT-Trace has no resizing, Avoid-RPF copies data that is read, Adapt-TLB
# resizes.
PAPER = {
    "boot": (13.10, 12.24, 13.29),
    "syscall": (0.008, 0.003, 0.001),
    "pipe": (0.054, 0.034, 0.135),
    "fork": (2.240, 2.061, 2.823),
    "exec": (8.384, 7.533, 8.849),
}

METHOD = (
    f"QEMU -icount, {power.NS_PER_INSTRUCTION} ns an instruction, one huge page of 64 MiB behind the guest; "
    "faults, misses and splits are of a guest that only boots, by KVM's own counters"
)


def take(context: Context, variant: str, arguments: str) -> Console:
    """Run a guest that only boots, and one that runs the workloads."""
    how = How(context.progress, context.keep / variant if context.keep else None)
    runs = {"boot": "boot", "all": ",".join(WORKLOADS)}
    vms = [Vm(label, MODES["inplace"], f"run={run} {arguments}") for label, run in runs.items()]
    return power.in_host(power.one_after_another(vms), arguments=VARIANTS[variant], label=variant, how=how)


def row(variant: str, console: Console) -> dict[str, Any]:
    """Return the instructions of each workload, and what tracing did at boot."""
    results, counts = console.of("all").results, console.statistics("boot")
    return {
        "variant": variant,
        **{name: round(results[name].instructions) for name in WORKLOADS},
        "traced": counts["bt_traced_loads"] + counts["bt_traced_stores"] + counts["bt_traced_cacheops"],
        "tlb_misses": counts["itlb_virt_miss_exits"] + counts["dtlb_virt_miss_exits"],
        "splits": counts["bt_splits"],
    }


@experiment(
    name="power-tracing",
    accelerator="power",
    title="A translated guest by the size of its TLB entries: instructions",
    reproduces='In-place translation, "Tracing overhead optimizations", "Adaptive TLB Resizing"',
    minutes=2,
    demo=False,  # power-exits shows what all this is for
)
def power_tracing(context: Context) -> Result:
    """Measure fixed sizes of shadow TLB entries over traced pages, and the adaptive policy."""
    arguments = f"scale={'quick' if context.quick else 'full'}"
    rows = [row(variant, take(context, variant, arguments)) for variant in VARIANTS]
    *fixed, adaptive = rows
    best = min(fixed, key=lambda one: one["boot"])
    slower = [name for name in WORKLOADS if adaptive[name] > 1.02 * min(one[name] for one in fixed)]
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
                "adaptive is as good as any fixed size",
                not slower,
                f"over 2 % behind the best fixed size: {', '.join(slower) or 'none'} of {len(WORKLOADS)}",
            ),
            Check(
                "fixed sizes are not split",
                not any(one["splits"] for one in fixed) and adaptive["splits"] > 0,
                f"{adaptive['splits']} splits, all of the adaptive policy",
            ),
        ],
        machine={
            **host.package_versions(("qemu-system-ppc", "linux-source-6.1", "gcc-powerpc-linux-gnu")),
            "machines": [
                {"name": "ppce500", "cpu": power.CPU, "cpus": 1, "memory_mib": power.HOST_MEMORY_MIB}
            ],
        },
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
