# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Page tables are accounted as on a stock kernel: to the system and to the memory cgroup that uses them."""

import re

import pytest

from machines import GUEST, pool_file
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

pytestmark = pytest.mark.machine

SLEEPERS = 30
GROUP = "/sys/fs/cgroup/tables"
# Per-CPU batches of the counters: pages, as bytes.
NOISE = 64 * 4096

_MEASURE = (
    f"mkdir {GROUP}; "
    f"sh -c 'echo $$ >{GROUP}/cgroup.procs; for i in $(seq {SLEEPERS}); do sleep 1000 & done'; sleep 3; "
    f"grep -E '^(kernel|pagetables) ' {GROUP}/memory.stat; "
    "killall sleep; sleep 3; "
    f"grep -E '^(kernel|pagetables) ' {GROUP}/memory.stat | sed 's/^/after_/'; rmdir {GROUP}"
)


def _run(mistake: str = "") -> Transcript:
    """Measure stock and boosted, or a mutant, in one boot."""
    load = pagetable.load_steps()
    insmod = Step(load[1].name, f"insmod {GUEST}/{mistake or pagetable.NAME}.ko")
    return runner.run(
        # With -icount a second is as much work on any host.
        MACHINES["xen-strict"].with_icount(),
        [
            Step(
                "cgroups",
                "mount -t cgroup2 none /sys/fs/cgroup && echo +memory >/sys/fs/cgroup/cgroup.subtree_control",
            ),
            Step("stock", _MEASURE, timeout_s=300),
            load[0],
            insmod,
            Step("boosted", _MEASURE, timeout_s=300),
            *pagetable.unload_steps(),
        ],
        files={**pagetable.files(), **pool_file(mistake)},
    )


def _stat(transcript: Transcript, step: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", transcript[step].output, re.M)}


def test_a_cgroup_is_charged_as_on_stock() -> None:
    transcript = _run()
    stock, boosted = _stat(transcript, "stock"), _stat(transcript, "boosted")
    assert stock["pagetables"] > SLEEPERS * 4096
    assert abs(boosted["pagetables"] - stock["pagetables"]) <= NOISE
    assert abs(boosted["kernel"] - stock["kernel"]) <= NOISE
    assert boosted["after_pagetables"] <= NOISE
    assert abs(boosted["after_kernel"] - stock["after_kernel"]) <= NOISE
    assert transcript.kernel_warnings() == []


@pytest.mark.long("a boot for a control")
def test_negative_control_without_the_charge() -> None:
    transcript = _run("no-charge")
    stock, boosted = _stat(transcript, "stock"), _stat(transcript, "boosted")
    assert stock["pagetables"] - boosted["pagetables"] > NOISE


@pytest.mark.long("a boot for a control")
def test_negative_control_without_the_uncharge() -> None:
    transcript = _run("no-uncharge")
    stock, boosted = _stat(transcript, "stock"), _stat(transcript, "boosted")
    assert boosted["after_kernel"] - stock["after_kernel"] > NOISE
