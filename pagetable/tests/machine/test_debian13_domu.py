# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A PV domU of Debian 13: its kernel, on its Xen, started by its toolstack in a dom0 with the same kernel.

The domU may be given a device, so the payload lets it have semi-writable pages, and it has both modules. It
has none, so there are no flushes to save: test_debian13_xen.py counts dom0's. The guest's memory is judged by
programs that know what it must hold; Xen's list and its free memory show what is left of a domain.
"""

import re
from dataclasses import replace

import pytest

from trapless_lab.machines import domu, runner
from trapless_lab.machines.domu import DomU
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.pair import PAIRS
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("a boot with two kernels of 6.12; make check has a domU of the host's release"),
]

PAIR = PAIRS["debian13"]
PARTS = (pagetable.POOL_PART, pagetable.PVMMU_PART)
DOMU = DomU(
    programs=("spawn", "cow", "cowthreads"),
    memory_mib=320,  # 64 of it are bounce buffers for a device
    vcpus=2,
    passthrough=True,
    files=pagetable.files(PARTS, PAIR),
)
PROCESSES = 60
SPAWN = f"spawn fork-exit -n {PROCESSES} >/dev/null"
TABLES = 9  # of a process, at least
MEMORY = "cow --seed 5 --pages 128 --rounds 20 && cowthreads 10"
LEFT = "xl list; xl info | grep free_memory"


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    load, unload = pagetable.load_steps(PARTS), pagetable.unload_steps(PARTS)
    return runner.run(
        PAIR.machine(MACHINES["xen-strict"]),
        [
            *PAIR.settling,
            domu.toolstack(),
            *pagetable.PAYLOAD_PART.load,
            DOMU.create(),
            DOMU.step("which", "uname -r && cat /sys/hypervisor/version/minor"),
            # The domU's kernel has its own background work after its boot.
            *(DOMU.inside(step) for step in PAIR.settling),
            *map(DOMU.inside, load),
            DOMU.step("left out", f"cat {pagetable.SYSFS}/left_out {pagetable.PVMMU_SWITCHES}/left_out"),
            DOMU.step("processes", SPAWN),
            DOMU.inside(pagetable.pool_step()),
            DOMU.step("memory", MEMORY, timeout_s=600),
            *map(DOMU.inside, unload),
            DOMU.step("stock", SPAWN),
            *map(DOMU.inside, load),
            DOMU.step("memory again", MEMORY, timeout_s=600),
            domu.console(),
            # With its marks in force. What Xen makes once, such as the map of marks, is there from now on.
            DOMU.destroy(),
            Step("left before", f"{DOMU.gone()}; sleep 1; {LEFT}"),
            DOMU.create(),
            *map(DOMU.inside, load),
            DOMU.step("processes again", SPAWN),
            replace(DOMU.destroy(), name="destroy again"),
            Step("left after", f"{DOMU.gone()}; sleep 1; {LEFT}"),
            *pagetable.PAYLOAD_PART.unload,
        ],
        files={
            **domu.tree(DOMU, of=PAIR),
            pagetable.PAYLOAD_PART.guest_path: File(pagetable.PAYLOAD_PART.built(PAIR)),
        },
        modules=domu.MODULES,
    )


def test_all_of_it_is_debian_13s(transcript: Transcript) -> None:
    assert "Xen version 4.20" in transcript.console
    release, minor = transcript["which"].output.split()
    assert release.startswith("6.12.") and release.endswith("+deb13-amd64") and minor == "20"


def test_every_part_serves_the_domu(transcript: Transcript) -> None:
    assert transcript["left out"].output.split() == []


def test_its_tables_come_from_the_pool(transcript: Transcript) -> None:
    hits = sum(level["hits"] for level in pagetable.pool_sizes(transcript["pool"]).values())
    assert hits > 0.9 * PROCESSES * TABLES


def test_memory_is_as_it_must_be(transcript: Transcript) -> None:
    assert [transcript[step].rc for step in ("memory", "memory again")] == [0, 0]
    assert transcript.kernel_warnings() == []
    assert domu.kernel_warnings(transcript) == []


def test_nothing_is_left_of_it(transcript: Transcript) -> None:
    before, after = (transcript[f"left {when}"].output for when in ("before", "after"))
    assert "(null)" not in after and DOMU.name not in after
    free = [re.findall(r"free_memory\s*: (\d+)", output) for output in (before, after)]
    assert free[0] == free[1] != []
