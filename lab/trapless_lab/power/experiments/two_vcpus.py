# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How many more forks a second a guest with two vCPUs makes than one with one: the paper's section 7.1, which
is empty there.

Invariant: both guests run the same two processes, which fork at the same time, on the same host, in turns.
The figures are of this computer's own clock, for with one that counts instructions QEMU's processors take
turns, and a vCPU that waits for the other wastes its turn. So they mean something only if two processors of
this computer had nothing else to do; no check depends on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ... import artifacts
from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Target, experiment
from ...machines.initramfs import File
from ...machines.machine import MACHINES, Machine
from .. import machine as power
from ..console import TICKS_PER_SECOND, Console, Measured
from ..machine import MODES, How, Vm

# The huge pages of the host with two processors are smaller.
BACKING = "hugetlb=16M"
GUESTS = ("base", "inplace")
VCPUS = (1, 2)
ROUNDS, QUICK_ROUNDS = 5, 1
# How often two processes fork at once in each round.
TIMES = 3
# How many times the forks of one vCPU two are to make.
WANTED = 1.7
TIMEOUT_S = 1800

METHOD = (
    "a host with two processors, QEMU without -icount: two of its threads run at once. Two processes of a "
    f"guest fork at the same time, {TIMES} times, in a guest with one vCPU and then in one with two; medians "
    f"of {ROUNDS} such rounds, {QUICK_ROUNDS} if quick. Forks a second of this computer's own time: both its "
    "processors must be idle"
)


@dataclass(frozen=True)
class Rates:
    """Forks a second of a guest in each round, by its number of vCPUs."""

    one: Sequence[float]
    two: Sequence[float]

    @property
    def medians(self) -> dict[str, float]:
        """Return the contract's keys."""
        return {"one": round(median(self.one), 1), "two": round(median(self.two), 1)}

    @property
    def quotients(self) -> list[float]:
        """Return how many times the forks of one vCPU two make, by round, the least first."""
        return sorted(two / one for one, two in zip(self.one, self.two, strict=True))

    @property
    def gain(self) -> float:
        """Return the median of the quotients."""
        return median(self.quotients)


def kernel() -> Path:
    """Return the kernel for two processors, for hosts and guests. Raises LabError if it was not built."""
    return artifacts.power("smp", "vmlinux")


def host() -> Machine:
    """Return the host with two processors."""
    return replace(MACHINES["power-kvm-smp"], kernel=kernel())


def label(mode: str, turn: int, vcpus: int) -> str:
    """Return the name of a guest in the host's script."""
    return f"{mode}-{turn}-{vcpus}"


def vms(modes: Sequence[str], rounds: int) -> list[Vm]:
    """Return the guests in the order in which they run."""
    run = f"run={','.join(['fork+fork'] * TIMES)} scale=full"
    return [
        Vm(label(mode, turn, vcpus), MODES[mode], run, BACKING, ("--cpus", str(vcpus)))
        for turn in range(rounds)
        for mode in modes
        for vcpus in VCPUS
    ]


def rate(forks: Sequence[Measured]) -> float:
    """Return the forks a second of two processes at once: each pair takes as long as the slower of both."""
    pairs = zip(forks[::2], forks[1::2], strict=True)
    return median(
        (first.count + second.count) * TICKS_PER_SECOND / max(first.ticks, second.ticks)
        for first, second in pairs
    )


def take(context: Context, modes: Sequence[str] = GUESTS) -> tuple[Console, int]:
    """Run all guests; return the host's console, and how many rounds there were."""
    rounds = QUICK_ROUNDS if context.quick else ROUNDS
    console = power.in_host(
        power.one_after_another(vms(modes, rounds)),
        files={"/guest/vmlinux": File(kernel())},
        how=How(context.progress, context.logs("two-vcpus"), timeout_s=TIMEOUT_S),
        label="two-vcpus",
        machine=host(),
    )
    return console, rounds


def rates(console: Console, mode: str, rounds: int) -> Rates:
    """Return the forks a second of a mode's guests."""
    one, two = (
        [rate(_forks(console, label(mode, turn, vcpus))) for turn in range(rounds)] for vcpus in VCPUS
    )
    return Rates(one, two)


def _forks(console: Console, guest: str) -> Sequence[Measured]:
    found = console.of(guest).samples.get("fork", [])
    if len(found) != 2 * TIMES:
        raise LabError(f"guest {guest} said {len(found)} times, not {2 * TIMES}, how long its forks took")
    return found


def checks(console: Console, modes: Sequence[str], rounds: int) -> list[Check]:
    """Check that the guests had as many processors as they are called after, and were translated or not."""
    every = [(mode, turn, vcpus) for mode in modes for turn in range(rounds) for vcpus in VCPUS]
    odd = [one for one in every if f"together on {one[2]}\n" not in console.of(label(*one)).text]
    sites = {one: console.statistics(label(*one)).get("bt_sites", 0) for one in every}
    wrong = [one for one, count in sites.items() if bool(count) != (one[0] == "inplace")]
    return [
        Check("processors", not odd, f"guests with another number of vCPUs: {len(odd)} of {len(every)}"),
        Check(
            "translated",
            not wrong,
            f"guests that were translated though they should not be, or not: {len(wrong)} of {len(every)}",
        ),
    ]


def in_place(context: Context) -> Mapping[str, float]:
    """Return the contract's key ``two_vcpus``: forks a second in place, with one vCPU and with two.

    Raises LabError if the guests were not what the key says.
    """
    console, rounds = take(context, ("inplace",))
    return sound(console, rounds).medians


def sound(console: Console, rounds: int) -> Rates:
    """Return the rates of guests in place. Raises LabError if a check of theirs does not hold."""
    if broken := [check for check in checks(console, ("inplace",), rounds) if not check.holds]:
        raise LabError("; ".join(f"{check.name}: {check.text}" for check in broken))
    return rates(console, "inplace", rounds)


def row(mode: str, found: Rates) -> dict[str, Any]:
    """Return a mode's forks a second, and by how many times two vCPUs make more."""
    quotients = found.quotients
    return {
        "mode": mode,
        **found.medians,
        "times": round(found.gain, 2),
        "spread": f"{quotients[0]:.2f} to {quotients[-1]:.2f}",
    }


@experiment(
    name="power-two-vcpus",
    accelerator="power",
    title="A guest with two vCPUs on a host with two e500v2: forks a second",
    reproduces="In-place translation, section 7.1, which has no text: multiprocessors",
    minutes=10,
    alone=True,
)
def power_two_vcpus(context: Context) -> Result:
    """Measure a parallel fork with one vCPU and with two, under plain KVM and translated in place."""
    console, rounds = take(context)
    found = {mode: rates(console, mode, rounds) for mode in GUESTS}
    return Result(
        unit="forks a second",
        method=METHOD,
        rows=[row(mode, one) for mode, one in found.items()],
        paper=[],
        checks=checks(console, GUESTS, rounds),
        machine=power.machine_facts(host()),
        keys={mode: one.medians for mode, one in found.items()},
        summary=[
            BeforeAfter(
                f"forks a second of two processes, {mode}",
                f"{one.medians['one']:,.0f}",
                f"{one.medians['two']:,.0f}",
                f"{one.gain:.2f} times; before has one vCPU, after two",
            )
            for mode, one in found.items()
        ],
        targets=[
            Target(
                "forks of one vCPU in place, share of those of two",
                round(1 / found["inplace"].gain, 3),
                round(1 / WANTED, 3),
            )
        ],
    )
