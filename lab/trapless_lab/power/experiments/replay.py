# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of adaptive splitting of traced blocks for a translated guest: the same guest again, with the
layout that splitting has found.

Invariant: the two guests of a pair differ only in the layout, and in the VMM's reading it; each has the same
place in its machine. A replay that splits anything, or has other sizes than were recorded, fails a check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...experiment.experiment import BeforeAfter, Check, Context, Result, experiment
from ...machines.initramfs import File
from .. import machine as power
from ..console import NS_PER_INSTRUCTION, TICKS_PER_INSTRUCTION, Console
from ..machine import MODES, How, Mode, Vm
from .exits import TABLE

WORKLOADS = TABLE
# The guest with an empty layout, whose blocks keep their first size: replays must be faster.
EMPTY = "empty"
# Guests under plain KVM, whose VMMs read a layout, which is not used, and an empty one.
LOADED, UNLOADED = "loaded", "unloaded"
LAYOUTS = "/layouts"

PAPER_PERCENT = (1, 2)

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction, one huge page of 64 MiB behind each guest; "
    "a guest for each workload, from the VMM's start to the workload's end, split as it goes, and once more "
    "with what bt_layout had at its end; the VMM's reading of that counts"
)


def splitting(arguments: str) -> list[Vm]:
    """Return the guests whose blocks are split as they go."""
    return [Vm(name, MODES["inplace"], f"run={name} {arguments}") for name in WORKLOADS]


def given(vm: Vm, layout: str) -> Vm:
    """Return a guest with a given layout."""
    return replace(vm, options=(*vm.options, "--bt-layout", f"{LAYOUTS}/{layout}"))


def replaying(arguments: str) -> list[Vm]:
    """Return the same guests with recorded layouts, one with an empty one, two for the cost of reading."""
    pairs = [given(vm, vm.label) for vm in splitting(arguments)]
    plain = Mode(MODES["inplace"].translation)
    return [
        *pairs,
        given(Vm(EMPTY, MODES["inplace"], f"run=boot {arguments}"), EMPTY),
        *(given(Vm(label, plain, ""), layout) for label, layout in ((UNLOADED, EMPTY), (LOADED, "boot"))),
    ]


def take(context: Context, label: str, vms: Sequence[Vm], layouts: Mapping[str, str]) -> Console:
    """Run guests one after another in a host that has layouts."""
    how = How(context.progress, context.logs(label), timeout_s=1800)
    files = {f"{LAYOUTS}/{name}": File(text.encode()) for name, text in layouts.items()}
    return power.in_host(power.one_after_another(vms), files=files, label=label, how=how)


def ticks(console: Console, label: str, workload: str) -> int:
    """Return a guest's instructions, from the VMM's start to the workload's end."""
    results = console.of(label).results
    # A boot's result is the whole time; those of others begin after the kernel's boot.
    before = 0 if workload in ("boot", "kernel_boot") else results["kernel_boot"].ticks
    return before + results[workload].ticks


def row(name: str, adaptive: Console, replayed: Console) -> dict[str, Any]:
    """Return both guests of a workload."""
    before, after = ticks(adaptive, name, name), ticks(replayed, name, name)
    return {
        "workload": name,
        "adaptive": round(before / TICKS_PER_INSTRUCTION),
        "replayed": round(after / TICKS_PER_INSTRUCTION),
        "overhead_percent": round(100 * (before / after - 1), 2),
        "splits": adaptive.statistics(name)["bt_splits"],
        "traced": adaptive.traced(name),
        "traced_replayed": replayed.traced(name),
        "tlb_misses": adaptive.shadow_misses(name),
        "tlb_misses_replayed": replayed.shadow_misses(name),
        "pages": len(sizes(adaptive, name)),
    }


def sizes(console: Console, label: str) -> dict[str, int]:
    """Return the size of each page's block, in KB."""
    lines = (line.split() for line in console.layout(label).splitlines())
    return {page: int(kb) for page, kb, *_ in lines}


def resized(adaptive: Console, replayed: Console, label: str) -> list[str]:
    """Return the recorded pages that have no size in the replay, or another."""
    before, after = sizes(adaptive, label), sizes(replayed, label)
    return [page for page in before if before[page] != after.get(page)]


def checks(adaptive: Console, replayed: Console) -> list[Check]:
    """Check the replays, and compare them with one with an empty layout."""
    split = [name for name in (*WORKLOADS, EMPTY) if replayed.statistics(name)["bt_splits"]]
    others = {name: pages for name in WORKLOADS if (pages := resized(adaptive, replayed, name))}
    slow, fast = (ticks(replayed, label, "boot") for label in (EMPTY, "boot"))
    few, many = replayed.traced("boot"), replayed.traced(EMPTY)
    return [
        Check(
            "a replay splits nothing",
            not split and all(adaptive.statistics(name)["bt_splits"] for name in WORKLOADS),
            f"split: {', '.join(split) or 'none'} of {len(WORKLOADS) + 1} replays",
        ),
        Check(
            "a replay has the sizes that were recorded",
            not others,
            f"other sizes: {', '.join(others) or 'none'} of {len(WORKLOADS)}",
        ),
        Check(
            "what is left of traced accesses is few",
            all(replayed.traced(name) < adaptive.traced(name) / 4 for name in WORKLOADS),
            f"at boot {adaptive.traced('boot'):,}, then {few:,}",
        ),
        Check(
            "an empty layout makes a difference",
            slow > 2 * fast and many > 1000 * (few + 1),
            f"its boot takes {slow / fast:.1f} times as long, with {many:,} traced accesses",
        ),
    ]


@experiment(
    name="power-replay",
    accelerator="power",
    title="Adaptive splitting of traced blocks, beside the layout it finds given beforehand: instructions",
    reproduces='In-place translation, overhead of "Adaptive TLB Resizing"',
    minutes=3,
)
def power_replay(context: Context) -> Result:
    """Measure what adaptive splitting costs, by replaying the layout that it found."""
    arguments = f"scale={'quick' if context.quick else 'full'}"
    adaptive = take(context, "adaptive", splitting(arguments), {})
    layouts = {name: adaptive.layout(name) for name in WORKLOADS}
    replayed = take(context, "replayed", replaying(arguments), {**layouts, EMPTY: ""})
    rows = [row(name, adaptive, replayed) for name in WORKLOADS]
    overheads = [one["overhead_percent"] for one in rows]
    loading = ticks(replayed, LOADED, "kernel_boot") - ticks(replayed, UNLOADED, "kernel_boot")
    return Result(
        unit="instructions",
        method=METHOD,
        rows=rows,
        paper=[dict(zip(("least_percent", "most_percent"), PAPER_PERCENT, strict=True))],
        checks=checks(adaptive, replayed),
        machine=power.machine_facts(),
        keys={
            "overhead_percent": {one["workload"]: one["overhead_percent"] for one in rows},
            "empty": {
                "boot": round(ticks(replayed, EMPTY, "boot") / TICKS_PER_INSTRUCTION),
                "traced": replayed.traced(EMPTY),
            },
            "loading": round(loading / TICKS_PER_INSTRUCTION),
            "layouts": layouts,
        },
        summary=[
            BeforeAfter(
                "overhead of adaptive splitting, %",
                f"{PAPER_PERCENT[0]} to {PAPER_PERCENT[1]}",
                f"{min(overheads)} to {max(overheads)}",
                "before: the paper",
            )
        ],
    )
