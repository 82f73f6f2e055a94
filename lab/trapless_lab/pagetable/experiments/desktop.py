# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A desktop that nobody uses after log-in: the idle setting of PiBooster's draft, its section 5.1.

Invariant: a group counts only if the desktop was drawn and all its programs still run at the end of the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ... import host
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, experiment, machine_facts
from ...machines.machine import MACHINES
from ...machines.script import Step
from ...machines.transcript import Transcript
from .. import desktop, samples
from .. import parts as pagetable

# The desktop's files are in the guest's memory.
MACHINE = replace(MACHINES["xen-strict"], memory_mib=2048).with_icount()
SAMPLE_MS = 1000
MINUTE_S = 60
# The draft's idle system comes to rest ten minutes after log-in.
MINUTES, QUICK_MINUTES = 15, 3
STOCK_AT_LEAST = 100

PAPER = [{"group": "the draft, stock", "at rest after minutes": 10}]


@dataclass(frozen=True)
class Session:
    """One group: the flushes while the desktop appeared, then of each minute, and what was drawn."""

    log_in: int
    minutes: Sequence[int]
    processes: int
    empty_bytes: int
    drawn_bytes: int

    @property
    def at_rest_after(self) -> int | None:
        """The minutes after which there was no flush any more; None if there was one in the last."""
        busy = [number for number, flushes in enumerate(self.minutes, 1) if flushes]
        last = busy[-1] if busy else 0
        return None if last == len(self.minutes) else last


def _script(before: Sequence[Step], minutes: int) -> list[Step]:
    return [
        Step("prepare", desktop.PREPARE),
        *before,
        samples.start(SAMPLE_MS),
        Step("log in", f"{samples.UPTIME}\n{desktop.LOG_IN}\n{samples.UPTIME}", timeout_s=900),
        # A little longer: the next step's own processes are in none of the minutes.
        Step("idle", f"sleep {minutes * MINUTE_S + 5}", timeout_s=3600),
        Step("runs", desktop.RUNS),
        samples.end(),
    ]


def session(transcript: Transcript, minutes: int) -> Session:
    """Read a run."""
    first, taken = samples.read(transcript)
    begun, empty, ready = transcript["log in"].output.split()
    start, at = float(begun) - first, float(ready) - first
    # The next sample has what the log-in did since the one before.
    at += SAMPLE_MS / 1000
    ends = [at + minute * MINUTE_S for minute in range(minutes + 1)]
    return Session(
        samples.flushes(taken, start, at),
        [samples.flushes(taken, *minute) for minute in pairwise(ends)],
        samples.processes(taken, at, ends[-1]),
        int(empty),
        int(transcript["runs"].output),
    )


def row(group: str, found: Session) -> Row:
    """Return the figures of a group."""
    return {
        "group": group,
        "log-in": found.log_in,
        **{f"minute {number}": flushes for number, flushes in enumerate(found.minutes, 1)},
        "processes while idle": found.processes,
        "at rest after minutes": found.at_rest_after,
    }


def checks(found: Mapping[str, Session]) -> list[Check]:
    """Check the groups."""
    stock, pre = found["stock"], found["pre"]
    return [
        Check(
            "the desktop was drawn",
            all(one.drawn_bytes > 2 * one.empty_bytes for one in found.values()),
            "; ".join(
                f"{group}: the packed screen has {one.drawn_bytes:,} bytes, {one.empty_bytes:,} when empty"
                for group, one in found.items()
            ),
        ),
        Check(
            "stock flushes when it appears",
            stock.log_in > STOCK_AT_LEAST,
            f"{stock.log_in:,} flushes, more than {STOCK_AT_LEAST} expected; {pre.log_in:,} with the pool",
        ),
        Check(
            "an idle desktop comes to rest",
            all(one.at_rest_after is not None for one in found.values()),
            "; ".join(f"{group}: minute by minute {list(one.minutes)}" for group, one in found.items()),
        ),
    ]


@experiment(
    name="pagetable-desktop",
    accelerator="pagetable",
    title="An idle desktop",
    reproduces="PiBooster's draft, section 5.1: the idle setting, a desktop after log-in",
    minutes=3,
)
def pagetable_desktop(context: Context) -> Result:
    """Start a desktop, stock and with PiBooster loaded before, and leave it alone."""
    minutes = QUICK_MINUTES if context.quick else MINUTES
    parts = pagetable.PIBOOSTER_ALONE
    files = {**desktop.files(), **pagetable.files(parts)}
    found = {
        group: session(context.run(group, MACHINE, _script(before, minutes), files), minutes)
        for group, before in (("stock", []), ("pre", pagetable.load_steps(parts)))
    }
    if context.plots:
        context.plots.lines(
            "pagetable-desktop.png",
            {group: (list(range(minutes + 1)), [one.log_in, *one.minutes]) for group, one in found.items()},
            x="minutes since log-in",
            y="IOTLB flushes in the minute before",
            title="An idle desktop: flushes after log-in",
        )
    rows = [row(group, one) for group, one in found.items()]
    return Result(
        unit="IOTLB flushes",
        method=f"Debian's Xvfb, jwm (window manager, panel, clock) and xterm are started, then {minutes} "
        f"minutes go by. A sample each {SAMPLE_MS} ms of the guest's time; flushes in QEMU's VT-d trace "
        "between samples. pre: PiBooster alone, loaded before log-in. icount, 2 ns an instruction",
        rows=rows,
        paper=PAPER,
        checks=checks(found),
        machine=machine_facts([MACHINE], host.versions() | host.package_versions(list(desktop.PACKAGES))),
        keys={one["group"]: one for one in rows},
        summary=[
            BeforeAfter(
                "IOTLB flushes of a desktop's log-in",
                f"{found['stock'].log_in:,}",
                f"{found['pre'].log_in:,}",
                "with the pool loaded before; idle afterwards, stock comes to rest after "
                f"{found['stock'].at_rest_after} minutes, with the pool after {found['pre'].at_rest_after}",
            )
        ],
    )
