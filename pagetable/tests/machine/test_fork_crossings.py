# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How often a fork and exit crosses into Xen and flushes TLBs, wherever the stack begins in its page.

Counted by QEMU's plugin, which knows nothing of the module. The control is the same without the part that
remembers which pages are copied.
"""

from pathlib import Path

import pytest

from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.qemu import Plugin
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import crossings
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.crossings import Crossings
from trapless_lab.pagetable.parts import PVMMU_SWITCHES
from trapless_lab.plugins import events, plugin

# As process-latency's targets.
ENTRIES_AT_MOST, FLUSHES_AT_MOST = 27, 5
PROCESSES = 20
# A variable of the environment moves the stack by as much as it is long.
PLACES = range(0, 4096, 256)


def _fork(place: int) -> str:
    padding = f"PADDING=$(head -c {place} /dev/zero | tr '\\0' x)"
    return f"{padding} spawn fork-exit --warm-up 4 --count {PROCESSES}"


@pytest.mark.long("a boot of a minute; process-latency counts the same in four places")
@pytest.mark.machine
def test_few_wherever_the_stack_is(tmp_path: Path) -> None:
    machine = MACHINES["xen-strict"].with_icount()
    parts = pagetable.everything(machine)
    plan = crossings.plan(machine).write(tmp_path / "plan")
    runner.run(
        machine,
        [
            *pagetable.load_steps(parts),
            Step("the stack stays", "echo 0 >/proc/sys/kernel/randomize_va_space"),
            *(Step(f"at {place}", _fork(place), timeout_s=300) for place in PLACES),
            Step("without", f"echo 0 >{PVMMU_SWITCHES}/fork_hints && {_fork(0)}", timeout_s=300),
        ],
        files=pagetable.files(parts),
        plugins=[Plugin(plugin.build("events"), tmp_path / "events", plan)],
        work_dir=tmp_path,
    )
    intervals = events.parse((tmp_path / "events").read_text().splitlines())
    *found, without = (crossings.of(interval).each(PROCESSES) for interval in intervals)
    assert len(found) == len(PLACES)
    assert [figures for figures in found if not _is_few(figures)] == []
    assert not _is_few(without)


def _is_few(figures: Crossings) -> bool:
    return figures.entries <= ENTRIES_AT_MOST and figures.flushes <= FLUSHES_AT_MOST
