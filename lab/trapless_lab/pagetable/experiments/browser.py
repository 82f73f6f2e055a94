# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A real browser's life: Debian's firefox-esr opened, left idle, its tabs opened and closed, ended; its
processes, its IOTLB flushes and the pool's size meanwhile, and how fast the pool shrinks afterwards:
Figures 7 and 8 of PiBooster's draft, as measured, and its idle setting (section 5.1).

Invariant: a group counts only if the browser opened and closed all its tabs and ended by itself.
Two groups may be in one machine, one after the other; what the second finds of the first is what the kernel
keeps of a program that has ended, for the profile is new.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ... import host
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
from ...experiment.plots import Album
from ...machines.machine import MACHINES
from ...machines.script import Step
from ...machines.transcript import Transcript
from .. import firefox, samples
from .. import parts as pagetable
from ..samples import Sample

# Firefox and its packed files take memory, too.
MACHINE = replace(MACHINES["xen-strict"], memory_mib=3072).with_icount()

SAMPLE_MS = 500
TABS, QUICK_TABS = 5, 2
ROUNDS, QUICK_ROUNDS = 2, 1
PAUSE_MS = 1000
# The default policy lets go of half of what was needed in a quarter of an hour.
AFTER_S, QUICK_AFTER_S = 1800, 420
# The draft's idle system comes to rest ten minutes after log-in.
IDLE_S, QUICK_IDLE_S = 600, 120
REST_S = 60

# The groups of each machine, one after the other; a quick run boots only the first machine.
TOGETHER = (("stock", "pre"), ("dyn",))

# PiBooster's draft calls them so; the user's own top level belongs to the top.
NAMES: Mapping[str, tuple[str, ...]] = {
    "PGD": ("pgd", "user_pgd"),
    "PUD": ("pud",),
    "PMD": ("pmd",),
    "PTE": ("pte",),
}

STOCK_AT_LEAST = 1000
# Enabled meanwhile the pool is empty, and each page that it takes is a flush.
FLUSHES_LEFT_PERCENT = {"pre": 15, "dyn": 50}
PAPER_PAGES = {"pre": 250, "dyn": 210}

PAPER = [
    {"group": "pre", "most pages": 250, "processes a minute": 542, "mib": 284.1},
    {"group": "dyn", "most pages": 210, "processes a minute": 542, "mib": 284.1},
]


@dataclass(frozen=True)
class Life:
    """One group: its samples, and when what happened, in seconds since the first sample."""

    samples: Sequence[Sample]
    events: Sequence[tuple[str, float]]

    def at(self, event: str) -> float:
        """Return when something happened last."""
        return [at for name, at in self.events if name == event][-1]

    def flushes(self, start: float, end: float) -> int:
        """Return the flushes of a stretch."""
        return samples.flushes(self.samples, start, end)

    def processes(self, start: float, end: float) -> int:
        """Return the processes and threads that were made in a stretch."""
        return samples.processes(self.samples, start, end)


_IDLE = "idle"


def _idle(seconds: int) -> Step:
    """Leave the browser and its tabs alone."""
    return Step(_IDLE, f"{samples.UPTIME}; sleep {seconds}; {samples.UPTIME}", timeout_s=3600)


def _script(
    tabs: int, rounds: int, after_s: int, before: Sequence[Step], between: Sequence[Step]
) -> list[Step]:
    """Return a life; ``between``: what is done while the browser and its tabs are open."""
    drive = f"marionette --tabs {tabs} --url file://{firefox.PAGE} --pause {PAUSE_MS}"
    return [
        *before,
        Step("profile", firefox.PROFILE),
        samples.start(SAMPLE_MS),
        Step("start", firefox.START),
        Step("first tabs", f"{drive} --keep", timeout_s=3600),
        *between,
        Step("tabs", f"{drive} --count {rounds} --quit", timeout_s=3600),
        Step("end", firefox.ENDED, timeout_s=900),
        Step("ended", samples.UPTIME),
        Step("afterwards", f"sleep {after_s}", timeout_s=3600),
        samples.end(),
    ]


_EVENT = re.compile(r"^marionette (\w+) at=(\d+)$", re.MULTILINE)


def one_of(transcript: Transcript, group: str) -> Transcript:
    """Return what of a machine's run is one group's, its steps by their own names."""
    prefix = f"{group}: "
    own = [at for at, result in enumerate(transcript.results) if result.step.name.startswith(prefix)]
    first, last = own[0], own[-1]
    places = [at for at, bucket in enumerate(transcript.buckets) if bucket.step in (first, last)]
    return replace(
        transcript,
        results=tuple(
            replace(result, step=replace(result.step, name=result.step.name.removeprefix(prefix)))
            for result in transcript.results[first : last + 1]
        ),
        buckets=tuple(
            replace(bucket, step=None if bucket.step is None else bucket.step - first)
            for bucket in transcript.buckets[places[0] : places[-1] + 1]
        ),
    )


def life(transcript: Transcript, enabled_meanwhile: bool = False) -> Life:
    """Read a run; ``enabled_meanwhile``: it began without the pool."""
    first, taken = samples.read(transcript)
    events = [
        (event, int(at) / 1e9 - first)
        for step in ("first tabs", "tabs")
        for event, at in _EVENT.findall(transcript[step].output)
    ]
    if any(result.step.name == _IDLE for result in transcript.results):
        for name, at in zip(("left idle", "used again"), transcript[_IDLE].output.split(), strict=True):
            events.append((name, float(at) - first))
    events.append(("ended", float(transcript["ended"].output) - first))
    if enabled_meanwhile:
        known = [sample.at_s for sample in taken if sample.held is not None]
        events.append(("enabled", known[0] if known else taken[-1].at_s))
    return Life(taken, sorted(events, key=lambda event: event[1]))


def curve(found: Life) -> dict[str, list[float | None]]:
    """Return what the draft's figures draw, and what goes with it, over the guest's seconds."""
    spans = [after.at_s - before.at_s for before, after in pairwise(found.samples)]
    rates = [sample.flushes / span for sample, span in zip(found.samples[1:], spans, strict=True)]
    made: dict[str, list[float | None]] = {
        "s": [round(sample.at_s, 2) for sample in found.samples],
        "tasks": [sample.values["tasks"] for sample in found.samples],
        "flushes_per_second": [0.0, *(round(rate, 1) for rate in rates)],
        "held": [sample.held for sample in found.samples],
    }
    for name, levels in NAMES.items():
        for counter in samples.COUNTERS:
            made[f"{name} {counter}"] = [sample.pages(counter, levels) for sample in found.samples]
    return made


def shrinks(found: Life) -> dict[str, Any]:
    """Return the pool's pages when the browser has ended, the least afterwards, and how long it took."""
    ended = found.at("ended")
    after = [sample for sample in found.samples if sample.at_s >= ended and sample.held is not None]
    if not after:
        return {}
    least = min(sample.held or 0 for sample in after)
    half = ((after[0].held or 0) + least) / 2
    return {
        "held_at_the_end": after[0].held,
        "held_at_last": after[-1].held,
        "seconds_to_half": round(next(s.at_s for s in after if (s.held or 0) <= half) - ended, 1),
        "seconds_to_least": round(next(s.at_s for s in after if s.held == least) - ended, 1),
    }


def rests(found: Life) -> dict[str, Any]:
    """Return the flushes while nobody used the open browser, and in the last minute of it."""
    events = dict(found.events)
    if "left idle" not in events:
        return {}
    start, end = events["left idle"], events["used again"]
    return {
        "idle_flushes": found.flushes(start, end),
        "rest_flushes": found.flushes(max(start, end - REST_S), end),
    }


def row(group: str, found: Life) -> Row:
    """Return the figures of a life: of all of it, and from the time when the pool served."""
    events = dict(found.events)
    start = events.get("enabled", 0.0)
    end = events["ended"]
    held = [sample.held for sample in found.samples if sample.held is not None]
    flushes, processes = found.flushes(start, end), found.processes(start, end)
    return {
        "group": group,
        "seconds": round(end - start, 1),
        "processes": processes,
        "most_tasks": max(sample.values["tasks"] for sample in found.samples),
        "flushes": flushes,
        "flushes_per_process": round(flushes / processes, 2) if processes else None,
        **rests(found),
        "last_round_flushes": found.flushes(max(start, events["ready"]), end),
        **({"most_held": max(held)} if held else {}),
        **shrinks(found),
    }


def checks(found: Mapping[str, Life], tabs: int) -> list[Check]:
    """Check the lives."""
    rows = {group: row(group, one) for group, one in found.items()}
    opened = {group: [name for name, _ in one.events].count("opened") for group, one in found.items()}
    boosted = [rows[group] for group in FLUSHES_LEFT_PERCENT if group in rows]
    left = {
        one["group"]: 100 * one["last_round_flushes"] / rows["stock"]["last_round_flushes"] for one in boosted
    }
    given_back = [one["held_at_last"] < one["held_at_the_end"] for one in boosted]
    return [
        Check(
            "the browser lived",
            min(opened.values()) == max(opened.values()) > 1
            and all("quit" in dict(one.events) for one in found.values())
            and min(one["most_tasks"] for one in rows.values()) > 10 * tabs,
            f"{', '.join(f'{group}: {times} times {tabs} tabs' for group, times in opened.items())}; "
            f"at most {max(one['most_tasks'] for one in rows.values())} tasks",
        ),
        Check(
            "stock flushes",
            rows["stock"]["flushes"] > STOCK_AT_LEAST,
            f"{rows['stock']['flushes']:,} flushes, more than {STOCK_AT_LEAST:,} expected",
        ),
        Check(
            "the pool spares flushes",
            all(percent < FLUSHES_LEFT_PERCENT[group] for group, percent in left.items()),
            "; ".join(
                f"{group}: {percent:.1f} % of stock's in the last round are left, less than "
                f"{FLUSHES_LEFT_PERCENT[group]} % expected"
                for group, percent in left.items()
            ),
        ),
        Check(
            "an idle system comes to rest with the pool",
            rows["pre"]["rest_flushes"] == 0,
            f"flushes in the last {REST_S} s of idling with an open browser: "
            f"{rows['stock']['rest_flushes']:,} stock, {rows['pre']['rest_flushes']:,} with the pool",
        ),
        Check(
            "the pool gives back what the browser needed",
            all(given_back),
            "; ".join(
                f"{one['group']}: {one['held_at_the_end']:,} pages at its end, then {one['held_at_last']:,}"
                for one in boosted
            ),
        ),
    ]


def targets(rows: Mapping[str, Row]) -> list[Target]:
    """Return the draft's pages, which a browser of today is not expected to stay within."""
    return [
        Target(f"{group}: most pages held, the draft's", rows[group]["most_held"], pages)
        for group, pages in PAPER_PAGES.items()
        if group in rows
    ]


def _plot(album: Album, curves: Mapping[str, Mapping[str, list[float | None]]]) -> None:
    for key, y, title in (
        ("held", "pages that the pool has", "The pool over a browser's life"),
        ("tasks", "tasks", "Tasks over a browser's life"),
        ("flushes_per_second", "IOTLB flushes a second", "Flushes over a browser's life"),
    ):
        album.lines(
            f"pagetable-browser-{key.replace('_', '-')}.png",
            {group: _points(curve["s"], curve[key]) for group, curve in curves.items() if any(curve[key])},
            x="seconds of the guest since the browser was started",
            y=y,
            title=title,
        )


def _points(xs: Sequence[float | None], ys: Sequence[float | None]) -> tuple[list[float], list[float]]:
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


@experiment(
    name="pagetable-browser",
    accelerator="pagetable",
    title="The life of a browser",
    reproduces="PiBooster, section 5.1, and the draft's Figures 7 and 8: Firefox, the pool's size over time",
    minutes=20,
    # Starting Firefox takes three minutes of a processor.
    in_quick_report=False,
)
def pagetable_browser(context: Context) -> Result:
    """Let a Firefox live stock, with PiBooster enabled before, and while its tabs are open.

    Each life begins with a new profile. A quick run has the first two lives.
    """
    tabs, rounds, after_s, idle_s = (
        (QUICK_TABS, QUICK_ROUNDS, QUICK_AFTER_S, QUICK_IDLE_S)
        if context.quick
        else (TABS, ROUNDS, AFTER_S, IDLE_S)
    )
    idle = [_idle(idle_s)]
    parts = pagetable.PIBOOSTER_ALONE
    rest_off, *boost = parts
    files = {**firefox.files(), **pagetable.files(parts)}
    groups: Mapping[str, tuple[Sequence[Step], Sequence[Step]]] = {
        "stock": ((), idle),
        "pre": (pagetable.load_steps(parts), idle),
        "dyn": (pagetable.load_steps([rest_off]), pagetable.load_steps(boost)),
    }
    found = {}
    for machine in TOGETHER[: 1 if context.quick else None]:
        script = [Step("prepare", firefox.PREPARE)]
        for group in machine:
            before, between = groups[group]
            steps = _script(tabs, rounds, 1 if group == "stock" else after_s, before, between)
            script += [replace(step, name=f"{group}: {step.name}") for step in steps]
        transcript = context.run(" and ".join(machine), MACHINE, script, files)
        for group in machine:
            found[group] = life(one_of(transcript, group), enabled_meanwhile=group == "dyn")
    rows = [row(group, one) for group, one in found.items()]
    by_group = {one["group"]: one for one in rows}
    curves = {group: curve(one) for group, one in found.items()}
    if context.plots:
        _plot(context.plots, curves)
    return Result(
        unit="pages, flushes, tasks",
        method=f"Debian's firefox-esr, headless, driven through Marionette: {tabs} tabs opened; "
        f"{idle_s} s idle (not dyn); {tabs} more, closed, {rounds} times; quit; with the pool {after_s} s of "
        f"idle time. A sample each {SAMPLE_MS} ms of the guest's time; flushes in QEMU's VT-d trace between "
        "samples. PiBooster alone: pre from before the start, in the machine in which stock was before; dyn "
        "from when the first tabs are open, in a machine of its own. Each has a new profile. processes: with "
        "threads. "
        "last_round_flushes: from the driver's second connection, for dyn from the pool's first sample after "
        "it, to the end. icount, 2 ns an instruction",
        rows=rows,
        paper=PAPER,
        checks=checks(found, tabs),
        machine=machine_facts([MACHINE], host.versions() | host.package_versions([firefox.PACKAGE])),
        keys={
            **by_group,
            "events": {
                group: [[name, round(at, 2)] for name, at in one.events] for group, one in found.items()
            },
            "curves": curves,
        },
        summary=[
            BeforeAfter(
                "IOTLB flushes of a browser's life",
                f"{by_group['stock']['flushes']:,}",
                f"{by_group['pre']['flushes']:,}",
                f"with the pool from before; the pool has {by_group['pre']['most_held']:,} pages at most, "
                f"the "
                "draft's 250",
            )
        ],
        targets=targets(by_group),
    )
