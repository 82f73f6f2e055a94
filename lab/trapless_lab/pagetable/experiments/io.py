# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Does PiBooster harm input and output? Its Table 2 (network) and the disk, both by DMA through the IOMMU.

Invariant: no number here depends on the host's speed. The network is a cable between two cards of the
machine, so throughput is in guest time, which counts instructions; the duration of a disk access
depends on the host, so for the disk only instructions are reported, without those of the idle loop.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from ... import host
from ...errors import LabError
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
from ...experiment.workload import NS_PER_INSTRUCTION, instructions_on
from ...machines import initramfs
from ...machines.script import Step, StepResult
from .. import states
from ..columns import STRICT
from ..states import PIBOOSTER, STATES, STOCK

MACHINE = STRICT.with_cable().with_disk()
MODULES = ("e1000", "ahci", "sd_mod")

REPEATS = 8
QUICK_REPEATS = 2

MIB = {"network": 32, "disk": 512}
# The paper's buffer; a fixed window, as TCP's adaptation of the window would differ between runs.
_NETWORK = f"iperf3 --client 10.0.0.2 --len 16K --window 128K --bytes {MIB['network']}M --format k"
# Large blocks, for fewer waits, whose cost depends on the scheduling of the host's threads.
_DISK = (
    f"fio --name=x --filename=/dev/sda --direct=1 --bs=1m --size=64m --loops={MIB['disk'] // 64} "
    "--ioengine=psync --thread --output-format=terse --rw="
)
COMMANDS = {"network": _NETWORK, "disk read": f"{_DISK}read", "disk write": f"{_DISK}write"}

# Processes at a fixed pace, far above the paper's 542 a minute: a network test takes half a second here.
PACE_MS = 10
WORKLOAD = f"while sleep {PACE_MS / 1000}; do nothing; done"

AT_MOST_PERCENT = 0.5
# How far two means of the same may differ; beside processes two runs differ by a percent.
SLACK_PERCENT = 2.0
QUICK_SLACK_PERCENT = 5.0

PAPER = [
    {"state": "stock", "mean_mbps": 87.913, "stdev_mbps": 0.021, "range_mbps": "87.880 - 87.950"},
    {"state": "piboost", "mean_mbps": 87.926, "stdev_mbps": 0.028, "range_mbps": "87.880 - 88.010"},
]

# The second card is in a network namespace of its own; otherwise packets would not use the cable.
_PLUG = """unshare -n sh -c 'exec sleep 1000000' >/dev/null 2>&1 & other=$!
until ip link set eth1 netns $other 2>/dev/null && [ ! -e /sys/class/net/eth1 ]; do sleep 0.1; done
inside="nsenter -t $other -n"
ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up || exit 1
$inside ip addr add 10.0.0.2/24 dev eth1 && $inside ip link set eth1 up || exit 1
$inside iperf3 --server >/dev/null 2>&1 &
until ping -c 1 -W 1 10.0.0.2 >/dev/null; do :; done"""


@dataclass(frozen=True)
class Series:
    """The repetitions of one measure in one state."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The arithmetic mean."""
        return fmean(self.values)

    @property
    def stdev_percent(self) -> float:
        """The standard deviation, in percent of the mean."""
        return round(100 * stdev(self.values) / self.mean, 2)


def mbps(result: StepResult) -> float:
    """Return the receiver's throughput, in megabits a second of guest time."""
    found = re.findall(r"([\d.]+) Kbits/sec +receiver", result.output)
    if len(found) != 1:
        raise LabError(f'step "{result.step.name}" has {len(found)} throughputs:\n{result.output}')
    return float(found[0]) / 1000


def _label(command: str, busy: bool, repeat: int) -> str:
    return f"{command}{' beside processes' if busy else ''} {repeat + 1}"


def _measured(repeats: int) -> list[Step]:
    def runs(command: str, busy: bool) -> list[Step]:
        return [
            Step(_label(command, busy, i), f"soaked {COMMANDS[command]}", timeout_s=300)
            for i in range(repeats)
        ]

    return [
        *(step for command in COMMANDS for step in runs(command, False)),
        Step("start processes", f"({WORKLOAD}) >/dev/null 2>&1 & echo $! >/tmp/workload"),
        *runs("network", True),
        Step("stop processes", "kill $(cat /tmp/workload)"),
    ]


@experiment(
    name="pagetable-io",
    accelerator="pagetable",
    title="Network and disk through the IOMMU",
    reproduces="PiBooster, Table 2 and section 5.3.3 (iperf3 in place of netperf, fio of lmbench)",
    minutes=7,
)
def pagetable_io(context: Context) -> Result:
    """Move a fixed amount of bytes stock, with PiBooster alone, and with everything, in one boot."""
    repeats = QUICK_REPEATS if context.quick else REPEATS
    slack = QUICK_SLACK_PERCENT if context.quick else SLACK_PERCENT
    programs = [host.tool(name, name) for name in ("iperf3", "fio")]
    measured = _measured(repeats)
    script = [
        Step("no random layout", "echo 0 >/proc/sys/kernel/randomize_va_space"),
        Step("plug in", _PLUG),
        *(Step(f"warm up {command}", COMMANDS[command], timeout_s=300) for command in COMMANDS),
        *states.steps(measured),
    ]
    tree: dict[str, initramfs.File | initramfs.Link] = {**states.files()}
    for program in programs:
        tree |= initramfs.program(program)
    transcript = context.run("io", MACHINE, script, tree, modules=MODULES)

    def series(state: str, command: str, busy: bool, instructions: bool) -> Series:
        results = [states.result(transcript, state, _label(command, busy, i)) for i in range(repeats)]
        if not instructions:
            return Series(tuple(mbps(result) for result in results))
        mib = MIB[command.split()[0]]
        return Series(tuple(instructions_on(result) / mib for result in results))

    measures = {
        "network, Mbps": ("network", False, False),
        "network beside processes, Mbps": ("network", True, False),
        **{f"{command}, instructions a MiB": (command, False, True) for command in COMMANDS},
    }
    found = {name: {state: series(state, *which) for state in STATES} for name, which in measures.items()}
    worse = {
        state: {name: _worse_percent(name, by[state], by[STOCK]) for name, by in found.items()}
        for state in STATES[1:]
    }
    if context.plots:
        context.plots.bars(
            "pagetable-io.png",
            list(found),
            {s: [100 * by[s].mean / by[STOCK].mean for by in found.values()] for s in STATES},
            y="percent of stock",
            title="Network and disk beside page tables",
        )
    worst = {state: max(found, key=of.__getitem__) for state, of in worse.items()}
    beside = found["network beside processes, Mbps"]
    return Result(
        unit="megabits a second of guest time; instructions of the whole machine a MiB",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction: a machine of half a billion "
        "instructions a second, whose network is as fast as that; two emulated e1000 cards wired to each "
        f"other, {MIB['network']} MiB by iperf3 with client and server in this machine; {MIB['disk']} MiB by "
        "fio, 1 MiB blocks, direct, on an AHCI disk, start and end of the program included; beside "
        f"processes: two every {PACE_MS} ms; mean and standard deviation of {repeats}; worse_percent is "
        "against stock, below 0 is better; one boot",
        rows=[_row(name, by, {s: worse[s][name] for s in worse}) for name, by in found.items()],
        paper=PAPER,
        checks=[
            Check(
                f"{state} is no worse",
                of[worst[state]] <= slack,
                f"of {len(of)} the worst is {worst[state]}: {of[worst[state]]:+.2f} %",
            )
            for state, of in worse.items()
        ],
        machine=machine_facts([MACHINE], {**host.versions(), **host.package_versions(["iperf3", "fio"])}),
        keys={state: {name: round(by[state].mean, 1) for name, by in found.items()} for state in STATES},
        summary=[
            BeforeAfter(
                "network beside processes, Mbps",
                f"{beside[STOCK].mean:.1f}",
                f"{beside[PIBOOSTER].mean:.1f}",
                f"standard deviation {beside[STOCK].stdev_percent} % and {beside[PIBOOSTER].stdev_percent} %",
            )
        ],
        targets=[
            Target(f"{state}, {name}, worse by percent", of[name], AT_MOST_PERCENT)
            for state, of in worse.items()
            for name in of
        ],
    )


def _worse_percent(name: str, state: Series, stock: Series) -> float:
    change = states.percent(state.mean, stock.mean)
    return -change if "Mbps" in name else change


def _row(name: str, by: Mapping[str, Series], worse: Mapping[str, float]) -> Row:
    return {
        "measure": name,
        **{state: round(by[state].mean, 1) for state in STATES},
        **{f"{state}_stdev_percent": by[state].stdev_percent for state in STATES},
        **{f"{state}_worse_percent": percent for state, percent in worse.items()},
    }
