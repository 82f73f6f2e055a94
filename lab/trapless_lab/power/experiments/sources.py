# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The sources of a booting guest's exits on an e500v2, by instruction and by program counter, and the
translator's share of the boot's time.

Invariant: KVM's counts are compared with QEMU's. Which instruction exited, and where, is taken from QEMU's
log of exceptions and the linked kernel; KVM's counters are used only for exits that are not instructions.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ... import artifacts
from ...experiment import plots
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Target, experiment
from ...machines import runner
from ...machines.qemu import Plugin
from ...plugins import plugin
from .. import exceptions as power_exceptions
from .. import image as power_image
from .. import machine as power
from .. import ranges as power_ranges
from .. import refused as power_refused
from ..console import NS_PER_INSTRUCTION, Console
from ..exceptions import Exceptions
from ..image import Image
from ..machine import MODES, How, Vm
from ..ranges import Counts, Plan
from .exits import EMULATED, sources

BASE, IN_PLACE = "base", "inplace"
GUEST = "boot"

# Of a boot under base KVM: exits, and their share of all as printed.
PAPER = {
    **{"mfspr": (4_484_245, 33.8), "wrtee": (2_792_109, 21.1), "mtspr": (2_307_647, 17.4)},
    **{"rfi": (575_302, 9.5), "mtmsr": (413_847, 4.3), "tlbwe": (391_813, 3.1)},
    **{"dtlb_real_miss": (247_282, 2.9), "itlb_real_miss": (241_070, 1.8)},
    **{"dtlb_virt_miss": (198_239, 1.5), "itlb_virt_miss": (192_046, 1.4)},
}
PAPER_TOTAL = round(4_484_245 / 0.338)
# The least exits of each of so many program counters, and their share of all; the last are the others.
PAPER_PCS = {
    20_000: (93, 91.9),
    10_000: (23, 3.1),
    5_000: (68, 4.2),
    2_000: (12, 0.3),
    1_000: (17, 0.2),
    0: (299, 0.2),
}

COVERED = (50, 80, 90, 95, 99)
DRAWN_PCS = 200

TRAPS = "trap in a fragment"
# binutils and the manual have two names for it, by the source of the bit; the paper and KVM have one.
_ONE_CLASS = {"wrteei": "wrtee"}

PATCH = "kvmppc_bt_patch"
FILES = (
    "e500_bt",
    "e500_bt_context",
    "e500_bt_fast",
    "e500_bt_layout",
    "e500_bt_level2",
    "e500_bt_read",
    "e500_bt_shorten",
    "e500_bt_site",
    "e500_bt_tlb",
    "e500_bt_trace",
    "e500_bt_translate",
)
# KVM copies its exception handlers behind the kernel's code, and e500_bt_short.S behind them.
HANDLERS = "handlers"
CODE_END = 1 << 32
TRANSLATOR = ("e500_bt_site", "e500_bt_translate")
TRANSLATOR_PERCENT_AT_MOST = 2.0
# Instructions of modules, and at places that the kernel patches while it runs.
UNKNOWN_AT_MOST = 0.01
# Instructions after the machine has printed its clock: its reset.
REST_AT_MOST = 0.001

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; one guest that boots and does no more; "
    "instructions that exit are from QEMU's log of exceptions (-d int) and the words of vmlinux, other exits "
    "by KVM's counters; percentages are of all exits of that guest; a QEMU plugin counts instructions by the "
    "file of the host's kernel, in percent of the boot: from the VMM's start to the end of the start-up"
)


@dataclass(frozen=True)
class Run:
    """A guest's boot, as KVM and as QEMU saw it."""

    console: Console
    exceptions: Exceptions
    counts: Counts | None

    @property
    def statistics(self) -> Mapping[str, int]:
        """Return KVM's counters."""
        return self.console.statistics(GUEST)


def take(
    context: Context, mode: str, plan: Plan | None = None, counter: Path | None = None, run: str = GUEST
) -> Run:
    """Boot a guest in a mode, or make it run something else; with a plan, count instructions.

    ``counter`` is another build of the plugin that counts.
    """
    what = f"run={run} " if run else ""
    vm = Vm(GUEST, MODES[mode], f"{what}scale={'quick' if context.quick else 'full'}")
    with tempfile.TemporaryDirectory(prefix="trapless-power-") as temporary:
        planned, counted = (Path(temporary) / name for name in ("plan", "counts"))
        plugins = []
        if plan:
            plan.write(planned)
            plugins.append(Plugin(counter or plugin.build("ranges", architecture="power"), counted, planned))
        logs = context.logs(f"{mode}-{run or 'start'}") or Path(temporary)
        how = How(context.progress, logs, exceptions=True, plugins=tuple(plugins))
        console = power.in_host(power.one_after_another([vm]), label=mode, how=how)
        counts = power_ranges.parse(counted.read_text(), plan) if plan else None
        return Run(console, power_exceptions.read(logs / runner.TRACE), counts)


def by_source(image: Image, run: Run) -> dict[str, int]:
    """Return all exits, most frequent first: those of instructions by QEMU, the others by KVM."""
    found = Counter[str]()
    for name, times in power_refused.by_instruction(image, run.exceptions).items():
        kind = name.split()[0] if name not in (power_refused.OUTSIDE, power_refused.REPLACED) else name
        found[_ONE_CLASS.get(kind, kind)] += times
    if traps := power_refused.fragment_traps(image, run.exceptions):
        found[TRAPS] = traps
    for name, times in sources(run.statistics).items():
        if f"{name}_exits" != EMULATED:
            found[name] += times
    return dict(found.most_common())


def pc_classes(refused: Iterable[int], total: int) -> list[tuple[float, int, float]]:
    """Return the paper's table: the least share of all exits that a program counter has, how many have it,
    and what they have together, both in percent. Its numbers of exits are taken as shares of its total.
    """
    left = sorted(refused)
    found = []
    for bound in PAPER_PCS:
        least = bound / PAPER_TOTAL
        here = [times for times in left if times > least * total]
        left = left[: len(left) - len(here)]
        found.append((100 * least, len(here), 100 * sum(here) / total))
    return found


def rows(image: Image, runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Return exits by source, and program counters by how many exits they have."""
    counted = {mode: by_source(image, run) for mode, run in runs.items()}
    totals = {mode: sum(found.values()) for mode, found in counted.items()}
    table = [
        _row(name, {mode: _share(found.get(name, 0), totals[mode]) for mode, found in counted.items()})
        for name in dict.fromkeys(name for found in counted.values() for name in found)
    ]
    exits = {mode: run.exceptions.refused.values() for mode, run in runs.items()}
    classes = {mode: pc_classes(exits[mode], totals[mode]) for mode in runs}
    for at, (least, *_) in enumerate(classes[BASE]):
        name = f"PCs with over {least:.4f} % each" if least else "PCs with less"
        table.append(_row(name, {mode: (found[at][1], found[at][2]) for mode, found in classes.items()}))
    for percent in COVERED:
        table.append(
            {
                "source": f"PCs for {percent} % of instructions",
                **{_column(mode): power_refused.pcs_for(exits[mode], percent) for mode in runs},
            }
        )
    return table


def _share(part: int, total: int) -> tuple[int, float]:
    return part, 100 * part / total


def _column(mode: str) -> str:
    return "in_place" if mode == IN_PLACE else mode


def _row(name: str, values: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"source": name}
    for mode, (count, percent) in values.items():
        row |= {_column(mode): count, f"{_column(mode)}_percent": round(percent, 2)}
    return row


def paper_rows() -> list[dict[str, Any]]:
    """Return the paper's two tables."""
    found = [{"source": name, "base": count, "base_percent": share} for name, (count, share) in PAPER.items()]
    for bound, (pcs, share) in PAPER_PCS.items():
        name = (
            f"PCs with over {100 * bound / PAPER_TOTAL:.4f} % each ({bound:,})" if bound else "PCs with less"
        )
        found.append({"source": name, "base": pcs, "base_percent": share})
    return found


def plan(image: Image) -> Plan:
    """Return the plan: the files of translation, copied code, and the translator's calls from elsewhere."""
    objects = {name: artifacts.power("kernel", f"obj/arch/powerpc/kvm/{name}.o") for name in FILES}
    parts = {**power_image.parts(image, objects), HANDLERS: range(image.area.end, CODE_END)}
    return Plan(parts, power_ranges.calls_into(image, [parts[name] for name in TRANSLATOR]))


def translator(image: Image, run: Run, counts: Counts) -> dict[str, Any]:
    """Return the instructions of a boot by file, and those of the translator with all that it calls."""
    boot = run.console.of(GUEST).results[GUEST].instructions
    own = sum(counts.parts[name] for name in TRANSLATOR)
    called = sum(call.instructions for call in counts.calls.values())
    return {
        "boot": round(boot),
        "files": dict(counts.parts),
        "files_percent": {name: round(100 * count / boot, 2) for name, count in counts.parts.items()},
        "own_percent": round(100 * own / boot, 2),
        "called_percent": round(100 * called / boot, 2),
        "calls": {
            image.area.find(address)[1]: {"times": call.times, "instructions": call.instructions}
            for address, call in sorted(counts.calls.items(), key=lambda item: -item[1].instructions)
        },
        **{"rest_of_host": counts.rest, "guest": counts.guest, "programs": counts.programs},
    }


def counted_alike(image: Image, mode: str, run: Run) -> Check:
    """Compare KVM's counter of emulated instructions, including traps in fragments, with QEMU's log."""
    refused, traps = sum(run.exceptions.refused.values()), power_refused.fragment_traps(image, run.exceptions)
    kvm = run.statistics[EMULATED]
    return Check(
        f"QEMU and KVM count alike, {mode}",
        kvm == refused + traps,
        f"QEMU refused {refused:,} instructions of the guest's kernel and saw {traps:,} traps in fragments, "
        f"KVM counted {kvm:,}",
    )


def known(image: Image, mode: str, run: Run) -> Check:
    """Compare the words of the linked kernel with the refusals in QEMU's log."""
    found = power_refused.by_instruction(image, run.exceptions)
    unknown = found[power_refused.OUTSIDE] + found[power_refused.REPLACED]
    return Check(
        f"vmlinux has what exits, {mode}",
        unknown <= UNKNOWN_AT_MOST * found.total(),
        f"{unknown:,} of {found.total():,} instructions that exited are not in vmlinux, where they did",
    )


def counts_hold(image: Image, run: Run, counts: Counts) -> list[Check]:
    """Compare the plugin's counts with the machine's clock and KVM's counters."""
    clock = run.console.instructions
    patched = counts.calls.get(image.functions.get(PATCH, 0))
    stats = run.statistics
    tried = stats["bt_patched"] + stats["bt_untranslated"] + stats["bt_out_of_range"]
    times = patched.times if patched else 0
    return [
        Check(
            "all instructions are counted",
            0 <= counts.total - clock <= REST_AT_MOST * clock,
            f"{counts.total:,} by the plugin, {clock:,.0f} by the clock before the reset",
        ),
        Check(
            "all translations are counted",
            times == tried,
            f"{PATCH} was called {times:,} times by the plugin, {tried:,} by KVM's counters",
        ),
    ]


@experiment(
    name="power-sources",
    accelerator="power",
    title="Where the exits of a booting guest on an e500v2 come from",
    reproduces='In-place translation, "Sources of VM exits for linux boot", "PCs responsible for VM exits"',
    minutes=1,
)
def power_sources(context: Context) -> Result:
    """Count exits by instruction and program counter, and the translator's own instructions."""
    image = power_image.read(power.kernel())
    runs = {BASE: take(context, BASE), IN_PLACE: take(context, IN_PLACE, plan(image))}
    counts = runs[IN_PLACE].counts
    assert counts is not None
    took = translator(image, runs[IN_PLACE], counts)
    if context.plots:
        _draw(context.plots, image, runs)
    pcs = {mode: power_refused.pcs_for(run.exceptions.refused.values(), 90) for mode, run in runs.items()}
    return Result(
        unit="exits",
        method=METHOD,
        rows=rows(image, runs),
        paper=paper_rows(),
        checks=[
            *(counted_alike(image, mode, run) for mode, run in runs.items()),
            *(known(image, mode, run) for mode, run in runs.items()),
            *counts_hold(image, runs[IN_PLACE], counts),
        ],
        machine=power.machine_facts(),
        keys={
            "instructions": {
                mode: dict(power_refused.by_instruction(image, run.exceptions).most_common())
                for mode, run in runs.items()
            },
            "pcs": {mode: len(run.exceptions.refused) for mode, run in runs.items()},
            "top": {mode: power_refused.top(image, run.exceptions) for mode, run in runs.items()},
            "translator": took,
        },
        summary=[
            BeforeAfter(
                "places in the guest's kernel for 90 % of its instructions that exit",
                f"{pcs[BASE]:,}",
                f"{pcs[IN_PLACE]:,}",
            )
        ],
        targets=[
            Target("the translator's own code, % of a boot", took["own_percent"], TRANSLATOR_PERCENT_AT_MOST),
            Target("with all that it calls, % of a boot", took["called_percent"], TRANSLATOR_PERCENT_AT_MOST),
        ],
    )


def _draw(album: plots.Album, image: Image, runs: Mapping[str, Run]) -> None:
    counted = {mode: by_source(image, run) for mode, run in runs.items()}
    total = sum(counted[BASE].values())
    names = list(dict.fromkeys([*list(counted[BASE])[:8], *PAPER]))
    paper = [100 * PAPER[name][0] / PAPER_TOTAL if name in PAPER else 0.0 for name in names]
    album.bars(
        "power-sources.png",
        [name.replace("_", "\n") for name in names],
        {
            **{mode: [100 * found.get(name, 0) / total for name in names] for mode, found in counted.items()},
            "base in the paper": paper,
        },
        y="percent of all exits under base KVM",
        title="Exits of a booting guest, by the paper's sources",
    )
    album.lines(
        "power-pcs.png",
        {mode: _coverage(run.exceptions.refused.values()) for mode, run in runs.items()},
        x="program counters, the most frequent first",
        y="percent of the instructions that exit",
        title="Program counters responsible for exits",
    )


def _coverage(refused: Iterable[int]) -> tuple[list[float], list[float]]:
    ordered = sorted(refused, reverse=True)
    sums = list(accumulate(ordered))
    shares = [100 * part / sums[-1] for part in sums[:DRAWN_PCS]]
    return [float(number) for number in range(1, len(shares) + 1)], shares
