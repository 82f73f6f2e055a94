# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Crossings into Xen: counted by plugins/events.c, by a plugin that knows no entry point, and in
QEMU's log of exceptions, which knows no plugin.
"""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import plugin_mutants
from trapless_lab import host
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.qemu import Plugin
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import crossings
from trapless_lab.pagetable.crossings import Crossings
from trapless_lab.plugins import events, plugin

# A tick is 20 processes after the one before it.
PROCESSES, TICK = 40, 20
SPAWN = f"spawn fork-exit --warm-up 10 --count {PROCESSES} --tick {TICK} --pause 1"
EXCEPTION = re.compile(r"^ *\d+: v=([0-9a-f]{2}) e=([0-9a-f]+) i=\d cpl=3 ")
FETCH = 0x10
"""Of a page fault's error code: an instruction could not be fetched."""


def boot(folder: Path, library: Path) -> tuple[Crossings, int, Counter[str]]:
    """Return what the plugin counts, the transitions from a guest's code to Xen's, and QEMU's log."""
    machine = replace(MACHINES["xen-strict"].with_icount(), exceptions=True)
    folder.mkdir()
    witness = folder / "transitions.so"
    version = plugin.interface(host.qemu_version(host.qemu()))
    plugin.compile_to(witness, Path(__file__).parent / "plugins" / "transitions.c", version)
    plan = crossings.plan(machine).write(folder / "plan")
    runner.run(
        machine,
        [Step("spawn", SPAWN, timeout_s=600)],
        plugins=[Plugin(library, folder / "events", plan), Plugin(witness, folder / "transitions")],
        work_dir=folder,
    )
    (interval,) = events.parse((folder / "events").read_text().splitlines())
    transitions = int((folder / "transitions").read_text())
    return crossings.of(interval), transitions, logged(folder / runner.TRACE)


def logged(trace: Path) -> Counter[str]:
    """Return guests' exceptions and all loads of CR3 between the first two ticks of QEMU's log."""
    found: Counter[str] = Counter()
    ticks = 0
    with trace.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("parallel_ioport_write") and line.endswith("addr 0x00 val 0x07\n"):
                ticks += 1
            elif ticks != 1:
                continue
            elif line.startswith("CR3 update"):
                found["cr3_loads"] += 1
            elif exception := EXCEPTION.match(line):
                vector, error = (int(number, 16) for number in exception.groups())
                page = vector == 14
                found["page_faults" if page else "other_faults" if vector < 32 else "interrupts"] += 1
                found["fetches"] += page and bool(error & FETCH)
    assert ticks == PROCESSES // TICK
    return found


def apart(found: Crossings, transitions: int, seen: Counter[str]) -> list[str]:
    """Return in what the others differ from the plugin."""
    ticks = PROCESSES // TICK
    # A guest that Xen returns to, and whose first instruction cannot be fetched, has run none. Some of its
    # faults of that kind, two a process on Linux 6.1 and five on 6.12, are such: to within their number the
    # transitions are a witness.
    unseen = found.entries - transitions
    wrong = [] if 0 <= unseen <= ticks * seen["fetches"] else ["transitions"]
    for name, slack in (("page_faults", 10), ("cr3_loads", 10), ("other_faults", 3), ("interrupts", 10)):
        if abs(getattr(found, name) - ticks * seen[name]) > slack:
            wrong.append(name)
    return wrong


@pytest.mark.machine
def test_two_others_count_the_same(tmp_path: Path) -> None:
    """Transitions between addresses know no entry point, QEMU's log of exceptions no plugin at all."""
    found, transitions, seen = boot(tmp_path / "x", plugin.build("events"))
    assert seen["page_faults"] > 10 * TICK
    assert apart(found, transitions, seen) == []
    # Each of them is seen to be missing.
    for kind in ("page_faults", "cr3_loads"):
        assert kind in apart(replace(found, **{kind: 0}), transitions, seen)
    beyond = PROCESSES // TICK * seen["fetches"] + 1
    for missing in (beyond, -beyond):
        lacking = replace(found, hypercalls=found.hypercalls - missing)
        assert "transitions" in apart(lacking, transitions, seen)


@pytest.mark.long("a boot for a second control of a witness")
@pytest.mark.machine
def test_a_plugin_that_counts_more_is_found(tmp_path: Path) -> None:
    found, transitions, seen = boot(tmp_path / "x", plugin_mutants.build("events-nested", "events"))
    assert "interrupts" in apart(found, transitions, seen)
