# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two CPUs fork while a disk reads by DMA and the pool is toggled; no kernel warns.

The module is loaded before the forks and unloaded after them: QEMU with two CPUs may go on executing
the breakpoint by which a kernel changes its text.
"""

import pytest

from machines import STOP_FORKERS, forkers, helper_file, insmod
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import dma

pytestmark = pytest.mark.machine

_FORKERS = 3
# Every block holds the same bytes, so one checksum is known for any part of the disk.
_READ = "dd if=/dev/sda bs=1M count=16 iflag=direct 2>/dev/null | md5sum"


def test_stress() -> None:
    toggles = f"for i in 1 2 3 4 5; do echo 0 >{pagetable.POOL_SWITCH}; echo 1 >{pagetable.POOL_SWITCH}; done"
    transcript = runner.run(
        MACHINES["xen-strict-smp"].with_disk(),
        [
            Step("CPUs", "nproc"),
            Step("read quietly", _READ, timeout_s=300),
            *pagetable.load_steps(),
            Step("left out", f"cat {pagetable.SYSFS}/left_out"),
            Step("fork", forkers("fork-sh", _FORKERS)),
            Step("read under forks", _READ, timeout_s=300),
            Step("toggle", f"({_READ} >/tmp/sum) & {toggles}; wait; cat /tmp/sum", timeout_s=300),
            pagetable.pool_step(),
            Step("stop", STOP_FORKERS),
            *pagetable.unload_steps(),
            Step("read after", _READ, timeout_s=300),
        ],
        files=pagetable.files(),
        modules=dma.MODULES,
        make_disk=dma.disk,
    )
    assert transcript["CPUs"].output.strip() == "2"
    assert transcript["left out"].output == ""
    sums = {transcript[step].output for step in ("read quietly", "read under forks", "toggle", "read after")}
    assert len(sums) == 1
    assert transcript["stop"].output.split() == ["stopped"] * _FORKERS
    hits = sum(counters["hits"] for counters in pagetable.pool_sizes(transcript["pool"]).values())
    assert hits > 100
    assert sum(transcript.counts(result.step.name).faults for result in transcript.results) == 0
    assert transcript.kernel_warnings() == []


def test_calls_that_overlap() -> None:
    """Two CPUs mark and release the same pages; afterwards none is left marked, or the revert is refused."""
    race = "echo race >/sys/module/hypercall_test/parameters/run"
    transcript = runner.run(
        MACHINES["xen-strict-smp"],
        [
            pagetable.load_steps()[0],
            insmod("hypercall_test"),
            Step("race", f"{race} || {{ dmesg | tail -5; false; }}", timeout_s=300),
            Step("remove the test", "rmmod hypercall_test"),
            pagetable.unload_steps()[-1],
        ],
        files={**pagetable.files(), **helper_file("hypercall_test")},
    )
    assert transcript.counts("race").domain > 1000
    assert transcript.kernel_warnings() == []
