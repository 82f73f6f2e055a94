# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The sources of a guest's exits under plain KVM on an e500v2, by benchmark: a figure for which the paper
gives no numbers.

Invariant: each benchmark runs alone in a machine that is otherwise the same. Its exits are those of its guest
minus those of a guest that only starts, by instruction as in power-sources; for a boot, all exits.
"""

from collections.abc import Mapping
from typing import Any

from ...experiment import plots
from ...experiment.experiment import BeforeAfter, Check, Context, Result, experiment
from .. import image as power_image
from .. import machine as power
from ..console import NS_PER_INSTRUCTION
from .exits import TABLE
from .sources import BASE, GUEST, PAPER, PAPER_TOTAL, Run, by_source, counted_alike, known, take

BOOT = "boot"
WORKLOADS = TABLE
# A guest that starts and ends.
NOTHING = "nothing"

# As the paper groups them; all else is "others".
CLASSES: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("mfmsr", "mtmsr", "mfspr", "mtspr", "wrtee", "rfi", "tlbwe", "tlbsx")},
    "tlb_real": ("dtlb_real_miss", "itlb_real_miss"),
    "tlb_virt": ("dtlb_virt_miss", "itlb_virt_miss"),
    "dsi": ("dsi",),
    "syscall": ("syscall",),
}
OTHERS = "others"
PRIVILEGED = ("mfmsr", "mtmsr", "mfspr", "mtspr", "wrtee", "rfi")
# The share of a benchmark's exits, in classes of which its guest had fewer than one that only starts.
NEGATIVE_AT_MOST = 0.01

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; plain KVM, a machine for each benchmark; "
    "instructions that exit are from QEMU's log of exceptions (-d int) and the words of vmlinux, other exits "
    "by KVM's counters; of all but boot those of a guest that only starts are taken off; exits are of one "
    "repetition, the others percent of them"
)


def classes(found: Mapping[str, int]) -> dict[str, int]:
    """Return exits by the classes of the figure."""
    made = {name: sum(found.get(source, 0) for source in sources) for name, sources in CLASSES.items()}
    return {**made, OTHERS: sum(found.values()) - sum(made.values())}


def own(found: Mapping[str, int], started: Mapping[str, int]) -> dict[str, int]:
    """Return a guest's exits minus those of one that only starts."""
    return {name: count - started[name] for name, count in found.items()}


def row(name: str, found: Mapping[str, int], repetitions: int) -> dict[str, Any]:
    """Return the shares of a benchmark's exits."""
    total = sum(found.values())
    return {
        "workload": name,
        "exits": round(total / repetitions, 1),
        **{source: round(100 * count / total, 1) for source, count in found.items()},
    }


def paper_row() -> dict[str, Any]:
    """Return the paper's figures for a boot, from its Table 5."""
    counts = classes({name: count for name, (count, _) in PAPER.items()})
    left = PAPER_TOTAL - sum(counts.values())
    return row(BOOT, {**counts, OTHERS: counts[OTHERS] + left}, 1)


def repetitions(run: Run, name: str) -> int:
    """Return a guest's repetitions of its benchmark."""
    return run.console.of(GUEST).results[name].count


def less(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the benchmarks whose guests had notably fewer exits of a class than one that only starts."""
    return [
        name
        for name, counts in found.items()
        if -min(counts.values()) > NEGATIVE_AT_MOST * sum(counts.values())
    ]


@experiment(
    name="power-benchmarks",
    accelerator="power",
    title="Where exits under plain KVM on an e500v2 come from, by benchmark: percent",
    reproduces='In-place translation, Figure 1, "Sources of VM exits" by benchmark',
    minutes=4,
)
def power_benchmarks(context: Context) -> Result:
    """Count the exits of each benchmark under plain KVM by instruction."""
    image = power_image.read(power.kernel())
    runs = {name: take(context, BASE, run=name) for name in WORKLOADS}
    started = classes(by_source(image, take(context, BASE, run="")))
    whole = {name: classes(by_source(image, run)) for name, run in runs.items()}
    found = {name: counts if name == BOOT else own(counts, started) for name, counts in whole.items()}
    rows = [row(name, counts, repetitions(runs[name], name)) for name, counts in found.items()]
    privileged = {one["workload"]: round(sum(one[name] for name in PRIVILEGED), 1) for one in rows}
    if context.plots:
        _draw(context.plots, rows)
    return Result(
        unit="percent of exits",
        method=METHOD,
        rows=rows,
        paper=[paper_row()],
        checks=[
            *(counted_alike(image, name, run) for name, run in runs.items()),
            *(known(image, name, run) for name, run in runs.items()),
            Check(
                "each benchmark adds exits",
                not less(found),
                "notably less of something than a guest that only starts: "
                f"{', '.join(less(found)) or 'none'} of {len(WORKLOADS)}",
            ),
        ],
        machine=power.machine_facts(),
        keys={"exits": {**whole, NOTHING: started}, "privileged_percent": privileged},
        summary=[
            BeforeAfter(
                "privileged instructions that translation is about, % of exits",
                f"{min(privileged.values())} to {max(privileged.values())}",
                f"{privileged[BOOT]}",
                "before: the lowest and highest of all benchmarks; after: boot",
            )
        ],
    )


def _draw(album: plots.Album, rows: list[dict[str, Any]]) -> None:
    album.bars(
        "power-benchmarks.png",
        [one["workload"].replace("_", "\n") for one in rows],
        {name: [one[name] for one in rows] for name in (*CLASSES, OTHERS)},
        y="percent of exits under plain KVM",
        title="Sources of exits, by benchmark",
    )
