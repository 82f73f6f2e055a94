# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Each pair of a Xen and a Linux that is supported beside the host's own, as a whole: all parts, in one boot.

The witnesses are QEMU's count of flushes, which stock must cause before and after, and programs that compare
memory. test_debian13_xen.py and test_later_kernels.py test what is new in one of the two.
"""

import pytest

from machines import SPAWN, STOCK_FLUSHES
from trapless_lab import host, kernels
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.pair import PAIRS
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import parts as pagetable

pytestmark = [
    pytest.mark.machine,
    pytest.mark.debian12("there the host's own pair is the only one, which all other tests boot"),
]

PARTS = (pagetable.PAYLOAD_PART, pagetable.POOL_PART, pagetable.PVMMU_PART)
MEMORY = "cow --seed 3 --pages 128 --rounds 40 && cowthreads 20"


@pytest.mark.parametrize("name", ["debian12-backports", "debian13"])
def test_a_pair_holds_as_a_whole(name: str) -> None:
    pair = PAIRS[name]
    transcript = runner.run(
        pair.machine(MACHINES["xen-strict"].with_icount()),
        [
            *pair.settling,
            Step("which", "uname -r"),
            Step("stock", SPAWN),
            *pagetable.load_steps(PARTS),
            Step("left out", f"cat {pagetable.SYSFS}/left_out {pagetable.PVMMU_SWITCHES}/left_out"),
            Step("warm", SPAWN),
            Step("flushes", SPAWN),
            Step("memory", MEMORY, timeout_s=600),
            *pagetable.unload_steps(PARTS),
            Step("stock again", SPAWN),
        ],
        files=pagetable.files(PARTS, pair),
    )
    assert f"Xen version {host.xen(pair.xen_root).version}" in transcript.console
    assert transcript["which"].output.strip() == kernels.kernel(pair.linux).release
    assert transcript["left out"].output.split() == []
    assert transcript.counts("stock").pages >= STOCK_FLUSHES <= transcript.counts("stock again").pages
    assert transcript.counts("flushes").pages == 0
    assert transcript.kernel_warnings() == []
