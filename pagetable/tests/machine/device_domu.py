# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A PV domU that may have the machine's disk controller, and what Xen has left of it when it has ended."""

import re
from dataclasses import replace

import hypercalls
from machines import helper_file, insmod
from trapless_lab.machines.domu import DomU
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import dma

AHCI = "0000:00:1f.2"  # where a Q35 has it

# No device, but it may be given one at any time: its IOMMU tables follow its page types.
DOMU = DomU(
    programs=("spawn",),
    memory_mib=192,  # 64 of it are bounce buffers for the device
    passthrough=True,
    files={
        **helper_file(hypercalls.TEST),
        **helper_file(hypercalls.MODULE),
        **pagetable.files([pagetable.POOL_PART]),
    },
)
WITH_DISK = replace(
    DOMU,
    name="disk",
    devices=(AHCI,),
    modules=("xen-pcifront", *dma.MODULES),
    files={**DOMU.files, **dma.files()},
)

# The map of marks is made at the first call and stays.
FIRST_MARK = (
    insmod(hypercalls.TEST),
    Step("first mark", hypercalls.run_case("twice")),
    Step("rmmod", f"rmmod {hypercalls.TEST}"),
)

LEFT = "xl list; xl info | grep free_memory"
"""Prints what ``nothing_left`` compares."""


def left(when: str) -> Step:
    """Return a step that prints it."""
    return Step(f"left {when}", LEFT)


def nothing_left(transcript: Transcript, before: str, after: str) -> None:
    """Require that only dom0 is there, and that Xen has as much free memory as it had."""
    output = transcript[f"left {after}"].output
    assert len(re.findall(r"^\S+ +\d+ ", output, re.MULTILINE)) == 1, output
    was, now = (
        re.findall(r"free_memory\s*: (\d+)", transcript[f"left {when}"].output) for when in (before, after)
    )
    assert was == now != []
