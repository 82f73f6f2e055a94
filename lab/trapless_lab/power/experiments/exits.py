# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The time and the exits of a guest on an e500v2, by KVM's mode: the tables of the paper on in-place binary
translation.

Invariant: every mode is the same kernel, initramfs, backing and workloads on one clock, which counts
instructions. Exits are KVM's own counters of a guest that boots and does nothing else. Modes that end in
_fast translate nothing, but the host handles exits as quickly as for a translated guest, so that in place
can be compared with either: half of what it gains for a system call is the host's, not the translation's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Target, experiment
from .. import machine as power
from ..console import NS_PER_INSTRUCTION, Console, Measured
from ..machine import MODES, How, Vm
from . import two_vcpus

GUESTS = ("base", "inplace", "pv", "base_fast", "pv_fast")
QUICK_GUESTS = tuple(mode for mode in GUESTS if mode != "base_fast")
# What a guest's memory is made of, by the name in the table.
HUGE, SMALL = "64 MB", "4 KB"
BACKINGS = {HUGE: "hugetlb=64M", SMALL: "anonymous"}

# Seconds and milliseconds on a Freescale board: bare metal, base KVM, in place, paravirt.
PAPER: Mapping[str, tuple[float, float, float, float]] = {
    "boot": (6.50, 30.03, 12.24, 11.79),
    "echo_spawn": (1.40, 21.34, 7.26, 6.50),
    "find": (0.39, 1.89, 0.71, 0.67),
    "syscall": (0.001, 0.021, 0.004, 0.004),
    "stat": (0.003, 0.033, 0.007, 0.006),
    "fstat": (0.001, 0.021, 0.005, 0.004),
    "open_close": (0.007, 0.067, 0.015, 0.013),
    "signal_install": (0.001, 0.024, 0.004, 0.004),
    "pipe": (0.015, 0.165, 0.035, 0.033),
    "fork": (1.084, 6.641, 2.061, 1.640),
    "exec": (3.065, 20.543, 7.533, 6.254),
    "sh": (6.645, 45.164, 16.327, 13.842),
    "ctx_2p0k": (0.004, 0.028, 0.007, 0.011),
    "ctx_2p16k": (0.007, 0.034, 0.013, 0.012),
    "ctx_2p32k": (0.015, 0.067, 0.012, 0.012),
    "ctx_8p0k": (0.005, 0.151, 0.050, 0.056),
    "ctx_8p16k": (0.023, 0.331, 0.097, 0.096),
    "ctx_8p32k": (0.065, 0.358, 0.136, 0.121),
    "ctx_16p0k": (0.005, 0.165, 0.057, 0.059),
    "ctx_16p16k": (0.048, 0.366, 0.129, 0.122),
    "ctx_16p32k": (0.171, 0.448, 0.183, 0.184),
}

# By which factor each is to be faster than base KVM.
FASTER = {
    **{"boot": 2.9, "echo_spawn": 3.2, "find": 2.8, "syscall": 5.5, "stat": 5.0, "open_close": 4.7},
    **{"signal_install": 6.0, "pipe": 5.0, "fork": 3.4, "exec": 2.9, "sh": 2.9},
}
EXITS_LEFT_AT_MOST = 0.15
# How many rows of the performance table are to be at least as fast as with Linux's own paravirt.
TABLE = tuple(name for name in PAPER if not name.startswith("ctx_"))
AS_FAST_AS_PV = 8
# The same with 4 KB pages; no row is to be slower than with paravirt and short exits, but for this much.
FASTER_SMALL = {"boot": 3.2, "fork": 5.5}
CLOSE = 1.05

# What a context switch costs depends on where its pages happen to lie: so many placements are measured.
SWITCHES = tuple(name for name in PAPER if name.startswith("ctx_"))
PLACEMENTS, QUICK_PLACEMENTS = 5, 3
# What a guest runs, in this order. TEXT, a sum of the kernel's own text, runs on bare metal and with small
# pages only.
WORKLOADS = (
    *("boot", "getppid", "syscall", "stat", "fstat", "open_close", "signal_install", "signal_catch"),
    *("fork", "exec", "sh", "echo_spawn", "find", "pipe", *SWITCHES),
)
TEXT = "textsum"

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; the guest's memory is one huge page of "
    f"64 MiB or 4 KB pages, alike in every mode; a switch is the median of {PLACEMENTS} runs in one guest, "
    f"{QUICK_PLACEMENTS} if quick, whose pages lie elsewhere each time, and its spread; boot is from the "
    "VMM's start to the end of a "
    "start-up of 100 commands, and the exits are of a guest that does no more; sh is a program that only "
    "runs a command; the keys have ticks of the 400 MHz timebase, for all repetitions, but for two_vcpus: "
    "forks a second, as in power-two-vcpus; left out while machines of other experiments run"
)

# KVM's counters of exits; this KVM does not maintain sum_exits and light_exits.
_EXITS = "_exits"
_SUMS = {"sum_exits", "light_exits"}
EMULATED = "emulated_inst_exits"


def sources(statistics: Mapping[str, int]) -> dict[str, int]:
    """Return the exits of a guest by KVM's name for their reason, most frequent first."""
    found = {
        name.removesuffix(_EXITS): count
        for name, count in statistics.items()
        if name.endswith(_EXITS) and name not in _SUMS and count
    }
    if not found:
        raise LabError("KVM counted no exits at all")
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def column(results: Mapping[str, Measured], exits: Mapping[str, int]) -> dict[str, int]:
    """Return the contract's keys: ticks of each, and the exits of a boot."""
    return {
        **{name: results[name].ticks for name in ("boot", "getppid", "fork", "exec")},
        "emulated": exits.get(EMULATED.removesuffix(_EXITS), 0),
        "exits": sum(exits.values()),
    }


def take(context: Context, mode: str, backing: str = HUGE) -> Console:
    """Run one mode: a guest that only boots, and one that runs every workload."""
    arguments = f"scale={'quick' if context.quick else 'full'}"
    placements = QUICK_PLACEMENTS if context.quick else PLACEMENTS
    label = mode if backing == HUGE else f"{mode}-small"
    how = How(context.progress, context.logs(label))
    text = () if backing == HUGE and mode != "bare" else (TEXT,)
    every = ",".join((*WORKLOADS, *text, *(SWITCHES * (placements - 1))))
    if mode == "bare":
        return power.bare(f"run={every} {arguments}", how=how)
    vms = [
        Vm(f"{label}-{name}", MODES[mode], f"run={run} {arguments}", BACKINGS[backing])
        for name, run in (("boot", "boot"), ("all", every))
    ]
    return power.in_host(power.one_after_another(vms), label=label, how=how)


def row(name: str, consoles: Mapping[str, Console], backing: str) -> dict[str, Any]:
    """Return the instructions of a workload in each mode, and how many times faster than base KVM it is."""
    found = {mode: round(console.results[name].instructions) for mode, console in consoles.items()}
    made = {"workload": name, "backing": backing, **found}
    rivals = [mode for mode in found if mode not in ("bare", "base")]
    made |= {f"{mode}_faster": _times(found["base"], found[mode]) for mode in rivals}
    made["faster"] = made.pop("inplace_faster")
    if name in SWITCHES:
        for mode, console in consoles.items():
            every = sorted(round(one.instructions) for one in console.samples[name])
            made[f"{mode}_spread"] = f"{every[0]} to {every[-1]}"
    if name in PAPER and backing == HUGE:
        _, base, inplace, pv = PAPER[name]
        made |= {"paper_faster": _times(base, inplace), "paper_pv_faster": _times(base, pv)}
    return made


def _times(slow: float, fast: float) -> float:
    # From a context switch the time of pipes and memory is subtracted, so 0 may be left.
    return round(slow / fast, 2) if fast else 0.0


def checks(
    taken: Mapping[str, Mapping[str, Measured]],
    exits: Mapping[str, Mapping[str, int]],
    consoles: Sequence[Console],
) -> list[Check]:
    """Check a run."""
    slower = [
        name for name in TABLE if taken["inplace"][name].instructions >= taken["base"][name].instructions
    ]
    emulated = [line for console in consoles for line in console.text.splitlines() if "emulated " in line]
    totals = {mode: sum(counts.values()) for mode, counts in exits.items()}
    return [
        Check("no FPU", not emulated, f"{len(emulated)} workloads made the kernel emulate an FPU"),
        Check(
            "in place is faster",
            not slower,
            f"slower than base KVM: {', '.join(slower) or 'none'} of {len(TABLE)}",
        ),
        Check(
            "fewer exits",
            totals["inplace"] < totals["base"],
            f"{totals['inplace']:,} exits at boot in place, {totals['base']:,} under base KVM",
        ),
    ]


def share(taken: Mapping[str, Mapping[str, Measured]], name: str, of: str = "base") -> float:
    """Return the instructions in place as a share of another mode's."""
    other = taken[of][name].instructions
    return taken["inplace"][name].instructions / other if other else 0.0


def targets(
    taken: Mapping[str, Mapping[str, Measured]],
    small: Mapping[str, Mapping[str, Measured]],
    exits: Mapping[str, Mapping[str, int]],
) -> list[Target]:
    """Return the project's targets: share of base KVM's time and exits, rows in which paravirt is faster."""

    found = [
        Target(f"{name}, {backing}share of base KVM", round(share(found_in, name), 3), round(1 / times, 3))
        for backing, found_in, goals in (("", taken, FASTER), (f"{SMALL} pages, ", small, FASTER_SMALL))
        for name, times in goals.items()
    ]
    left = sum(exits["inplace"].values()) / sum(exits["base"].values())
    found.append(Target("exits at boot, share of base KVM", round(left, 3), EXITS_LEFT_AT_MOST))
    lost = [n for n in TABLE if taken["inplace"][n].instructions > taken["pv"][n].instructions]
    found.append(Target("rows of the table that paravirt wins", len(lost), len(TABLE) - AS_FAST_AS_PV))
    switch = share(taken, "ctx_2p0k", "pv_fast")
    found.append(Target("ctx_2p0k, share of paravirt with short exits", round(switch, 3), 1.0))
    behind = [n for n in TABLE if share(small, n, "pv_fast") > CLOSE]
    found.append(Target(f"rows, {SMALL} pages, behind paravirt with short exits", len(behind), 0))
    return found


def columns(consoles: Mapping[str, Console], exits: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return the contract's keys of each mode."""
    return {mode: column(console.results, exits.get(mode, {})) for mode, console in consoles.items()}


@experiment(
    name="power-exits",
    accelerator="power",
    title="A guest on an e500v2: instructions",
    reproduces='In-place translation, "Performance comparison", "Context switch", "Sources of VM exits"',
    minutes=20,
)
def power_exits(context: Context) -> Result:
    """Measure bare metal, base KVM, in-place translation and Linux's own paravirt."""
    guests = QUICK_GUESTS if context.quick else GUESTS
    if not context.shared:
        two_vcpus.kernel()  # that it is missing is not to be found after all else
    bare = take(context, "bare")
    hosts = {backing: {mode: take(context, mode, backing) for mode in guests} for backing in BACKINGS}
    labels = {HUGE: "{}", SMALL: "{}-small"}
    tables: dict[str, dict[str, Console]] = {}
    exits: dict[str, dict[str, dict[str, int]]] = {}
    for backing, consoles in hosts.items():
        name = labels[backing]
        tables[backing] = {"bare": bare} | {
            mode: console.of(f"{name.format(mode)}-all") for mode, console in consoles.items()
        }
        exits[backing] = {
            mode: sources(console.statistics(f"{name.format(mode)}-boot"))
            for mode, console in consoles.items()
        }
        for mode, console in tables[backing].items():
            wanted = [one for one in (*PAPER, *bare.results) if one != TEXT or backing == SMALL]
            if missing := [one for one in wanted if one not in console.results]:
                raise LabError(f"{mode} lacks {', '.join(dict.fromkeys(missing))}")
    taken = {mode: console.results for mode, console in tables[HUGE].items()}
    if context.plots:
        _draw(context, exits[HUGE])
    return Result(
        unit="instructions",
        method=METHOD,
        rows=[
            row(name, consoles, backing)
            for backing, consoles in tables.items()
            for name in bare.results
            if name != TEXT or backing == SMALL
        ],
        paper=[
            dict(zip(("workload", "bare", "base", "in_place", "paravirt"), (name, *figures), strict=True))
            for name, figures in PAPER.items()
        ],
        checks=checks(
            taken, exits[HUGE], [bare, *(c for consoles in hosts.values() for c in consoles.values())]
        ),
        machine=power.machine_facts(),
        keys={
            **columns(tables[HUGE], exits[HUGE]),
            "small_pages": columns(tables[SMALL], exits[SMALL]),
            "sources": exits[HUGE],
            **({} if context.shared else {"two_vcpus": two_vcpus.in_place(context)}),
        },
        summary=[
            BeforeAfter(
                f"{name}, instructions",
                f"{taken['base'][name].instructions:,.0f}",
                f"{taken['inplace'][name].instructions:,.0f}",
                f"bare metal: {taken['bare'][name].instructions:,.0f}",
            )
            for name in ("boot", "syscall", "fork", "exec")
        ],
        targets=targets(taken, {mode: c.results for mode, c in tables[SMALL].items()}, exits[HUGE]),
    )


def _draw(context: Context, exits: Mapping[str, Mapping[str, int]]) -> None:
    assert context.plots is not None
    names = list(dict.fromkeys(name for counts in exits.values() for name in list(counts)[:5]))
    context.plots.bars(
        "power-exits.png",
        [name.replace("_", "\n") for name in names],
        {mode: [counts.get(name, 0) for name in names] for mode, counts in exits.items()},
        y="exits",
        title="Exits of a booting guest, the most frequent sources",
    )
