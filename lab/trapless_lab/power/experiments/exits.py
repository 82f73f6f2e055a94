# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The time and the exits of a guest on an e500v2, by KVM's mode: the tables of the paper on in-place binary
translation.

Invariant: every mode is the same kernel, initramfs, backing and workloads on one clock, which counts
instructions. Exits are KVM's own counters of a guest that boots and does nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Target, experiment
from .. import machine as power
from ..console import NS_PER_INSTRUCTION, Console, Measured
from ..machine import MODES, How, Vm

GUESTS = ("base", "inplace", "pv")

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
    **{"boot": 2.6, "echo_spawn": 3.2, "find": 2.8, "syscall": 5.5, "stat": 5.0, "open_close": 4.7},
    **{"signal_install": 6.0, "pipe": 5.0, "fork": 3.4, "exec": 2.9, "sh": 2.9},
}
EXITS_LEFT_AT_MOST = 0.15
# How many rows of the performance table are to be at least as fast as with Linux's own paravirt.
TABLE = tuple(name for name in PAPER if not name.startswith("ctx_"))
AS_FAST_AS_PV = 8

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; the guest's memory is one huge page of "
    "64 MiB in every mode; boot is from the VMM's start to the end of a start-up of 100 commands, and the "
    "exits are of a guest that does no more; sh is a program that only runs a command; the keys have ticks "
    "of the 400 MHz timebase, for all repetitions"
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


def take(context: Context, mode: str, arguments: str) -> Console:
    """Run one mode: a guest that only boots, and one that runs every workload."""
    how = How(context.progress, context.keep / mode if context.keep else None)
    if mode == "bare":
        return power.bare(f"run=all {arguments}", how=how)
    vms = [Vm(f"{mode}-{run}", MODES[mode], f"run={run} {arguments}") for run in ("boot", "all")]
    return power.in_host(power.one_after_another(vms), label=mode, how=how)


def row(name: str, taken: Mapping[str, Mapping[str, Measured]]) -> dict[str, Any]:
    """Return the instructions of a workload in each mode, and how many times faster than base KVM it is."""
    found = {mode: round(results[name].instructions) for mode, results in taken.items()}
    made = {"workload": name, **found, "faster": _times(found["base"], found["inplace"])}
    made["pv_faster"] = _times(found["base"], found["pv"])
    if name in PAPER:
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


def targets(
    taken: Mapping[str, Mapping[str, Measured]], exits: Mapping[str, Mapping[str, int]]
) -> list[Target]:
    """Return the project's targets: share of base KVM's time and exits, rows in which paravirt is faster."""

    def share(name: str) -> float:
        return taken["inplace"][name].instructions / taken["base"][name].instructions

    found = [
        Target(f"{name}, share of base KVM", round(share(name), 3), round(1 / times, 3))
        for name, times in FASTER.items()
    ]
    left = sum(exits["inplace"].values()) / sum(exits["base"].values())
    found.append(Target("exits at boot, share of base KVM", round(left, 3), EXITS_LEFT_AT_MOST))
    lost = [n for n in TABLE if taken["inplace"][n].instructions > taken["pv"][n].instructions]
    found.append(Target("rows of the table that paravirt wins", len(lost), len(TABLE) - AS_FAST_AS_PV))
    return found


@experiment(
    name="power-exits",
    accelerator="power",
    title="A guest on an e500v2: instructions",
    reproduces='In-place translation, "Performance comparison", "Context switch", "Sources of VM exits"',
    minutes=3,
)
def power_exits(context: Context) -> Result:
    """Measure bare metal, base KVM, in-place translation and Linux's own paravirt."""
    arguments = f"scale={'quick' if context.quick else 'full'}"
    consoles = {mode: take(context, mode, arguments) for mode in ("bare", *GUESTS)}
    taken = {
        mode: (console if mode == "bare" else console.of(f"{mode}-all")).results
        for mode, console in consoles.items()
    }
    for mode, results in taken.items():
        if missing := [name for name in (*PAPER, "getppid", *taken["bare"]) if name not in results]:
            raise LabError(f"{mode} lacks {', '.join(dict.fromkeys(missing))}")
    exits = {mode: sources(consoles[mode].statistics(f"{mode}-boot")) for mode in GUESTS}
    if context.plots:
        _draw(context, exits)
    return Result(
        unit="instructions",
        method=METHOD,
        rows=[row(name, taken) for name in taken["bare"] if name != "textsum"],
        paper=[
            dict(zip(("workload", "bare", "base", "in_place", "paravirt"), (name, *figures), strict=True))
            for name, figures in PAPER.items()
        ],
        checks=checks(taken, exits, list(consoles.values())),
        machine=power.machine_facts(),
        keys={
            "bare": column(taken["bare"], {}),
            **{mode: column(taken[mode], exits[mode]) for mode in GUESTS},
            "sources": exits,
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
        targets=targets(taken, exits),
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
