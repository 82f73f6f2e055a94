# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest's modules on Linux 6.12 as dom0's kernel, on the host's stock Xen.

The witnesses are the kernel's count of page tables and programs that compare memory; neither asks a module.
"""

import re

import pytest

from machines import GUEST
from trapless_lab import artifacts
from trapless_lab.kernels import Linux
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.parts import LEVELS, NAME, PAYLOAD_PART, POOL_PART, SYSFS

pytestmark = pytest.mark.machine

KERNELS = ("6.12-deb13", pytest.param("6.12-deb12", marks=pytest.mark.long("its source is 6.12-deb13's")))

# Each process has a table of the third level. The kernel's count is kept in batches for each CPU.
PROCESSES = 200
NOISE_KIB = 128
MISTAKE = "no-pud-count"
COUNT = f"spawn fork-exec -n {PROCESSES} >/dev/null && sleep 1 && grep ^PageTables: /proc/meminfo"


@pytest.fixture(scope="module", params=KERNELS)
def pool(request: pytest.FixtureRequest) -> Transcript:
    """The pool serves; then the same by a mutant."""
    linux: Linux = request.param
    mutant = f"{GUEST}/{MISTAKE}.ko"
    return runner.run(
        MACHINES["xen-strict"].with_linux(linux),
        [
            *PAYLOAD_PART.load,
            Step("stock", COUNT),
            *POOL_PART.load,
            Step("left out", f"cat {SYSFS}/left_out"),
            Step("boosted", COUNT),
            Step("hits", f"cd {SYSFS} && cat {' '.join(f'{level}/hits' for level in LEVELS)}"),
            *POOL_PART.unload,
            Step("stock again", COUNT),
            Step("load the mutant", f"insmod {mutant}"),
            Step("mutant", COUNT),
        ],
        files={
            PAYLOAD_PART.guest_path: File(artifacts.payload("pagetable", NAME)),
            POOL_PART.guest_path: File(artifacts.module("pagetable", "pool", NAME, linux)),
            mutant: File(artifacts.mutant("pagetable", f"pool-{MISTAKE}", f"{NAME}.ko", linux)),
        },
    )


def _kib(transcript: Transcript, step: str) -> int:
    (found,) = re.findall(r"PageTables: +(\d+) kB", transcript[step].output)
    return int(found)


def test_the_pool_serves_every_level(pool: Transcript) -> None:
    assert pool["left out"].output.split() == []
    assert all(int(hits) >= PROCESSES for hits in pool["hits"].output.split()), pool["hits"].output
    assert pool.kernel_warnings() == []


def test_the_kernel_counts_tables_as_on_stock(pool: Transcript) -> None:
    stock = _kib(pool, "stock")
    assert abs(_kib(pool, "boosted") - stock) <= NOISE_KIB
    assert abs(_kib(pool, "stock again") - stock) <= NOISE_KIB


def test_the_count_sees_a_level_that_is_not_counted(pool: Transcript) -> None:
    """The control; the kernel shows a count below 0 as 0."""
    assert _kib(pool, "mutant") < _kib(pool, "stock") - NOISE_KIB
