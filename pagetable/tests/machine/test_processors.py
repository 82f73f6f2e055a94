# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The payload on other processors and IOMMUs than the usual machine's, as far as QEMU has them.

An Intel processor that L1TF concerns, on which Xen also isolates page tables (XPTI) and looks at every entry
that is not present; and AMD's IOMMU. QEMU's emulation (TCG) has no PCID, which it says when it is asked for
one, so Xen's use of that is not tried.
"""

import re
from dataclasses import replace

import pytest

import tables
from machines import GUEST, KEPT_OUT, SPAWN, STOCK_FLUSHES, insmod, payload_file, table_test_file
from trapless_lab.machines import domu, runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import dma
from trapless_lab.pagetable.parts import POOL_PART, PVMMU_PART

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("boots of machines whose mitigations and tables cost no other code of ours"),
]

# With SMAP a PV dom0 does not come up in QEMU 7.2.
L1TF_CPU = "Skylake-Client-noTSX-IBRS,-smap"
CRASH = re.compile(r"d\d+ L1TF-vulnerable L(\d)e [0-9a-f]{16} - Crashing")
SEEDS, ROUNDS = range(301, 302), 40


@pytest.fixture(scope="module")
def intel() -> Transcript:
    """Dom0 inverts the addresses of its entries that are not present, as it is on such a processor."""
    machine = replace(MACHINES["xen-strict"], cpu=L1TF_CPU, xen_args=("pv-l1tf=true",))
    return runner.run(
        machine,
        [
            Step("stock", SPAWN),
            *pagetable.load_steps((*pagetable.PIBOOSTER, PVMMU_PART)),
            Step("use", "spawn fork-sh -n 20 && cow --rounds 20 && pinned && filemap read 2"),
            Step("warm", SPAWN),
            Step("boosted", SPAWN),
            *pagetable.unload_steps((*pagetable.PIBOOSTER, PVMMU_PART)),
        ],
        files=pagetable.files((*pagetable.PIBOOSTER, PVMMU_PART)),
    )


def test_dom0_works_with_every_part_where_l1tf_is_mitigated(intel: Transcript) -> None:
    assert "PV L1TF shadowing: Dom0 enabled, DomU enabled" in intel.console
    assert "XPTI (64-bit PV only): Dom0 enabled" in intel.console
    assert not CRASH.search(intel.console) and intel.kernel_warnings() == []


def test_processes_cause_no_flush_there(intel: Transcript) -> None:
    assert intel.counts("stock").pages >= STOCK_FLUSHES
    assert intel.counts("boosted").pages == 0


@pytest.fixture(scope="module")
def crashed() -> Transcript:
    """Two domUs make the same calls, one on stock Xen, one on Xen with the payload."""
    guests = {when: domu.DomU(when, files=table_test_file()) for when in ("stock", "boosted")}

    def adversary(when: str) -> list[Step]:
        guest = guests[when]
        calls = tables.leg(f"calls, {when}", SEEDS, ROUNDS, "record")
        return [
            guest.create(),
            guest.inside(insmod(tables.MODULE, name=f"insmod, {when}")),
            guest.inside(calls),
            Step(f"gone, {when}", guest.gone(), timeout_s=120),
        ]

    return runner.run(
        replace(MACHINES["xen-strict"].with_icount(), xen_args=("pv-l1tf=domu",)),
        [domu.toolstack(), *adversary("stock"), *pagetable.load_steps()[:1], *adversary("boosted")],
        files={**domu.tree(*guests.values()), **pagetable.files()},
        modules=domu.MODULES,
    )


def test_an_entry_that_l1tf_would_leak_by_crashes_its_domain_as_with_stock(crashed: Transcript) -> None:
    """Shadow paging, the other answer, is no part of Debian's Xen. The same entry, of the same level."""
    assert [crashed[f"calls, {when}"].rc for when in ("stock", "boosted")] != [0, 0]
    levels = CRASH.findall(crashed.console)
    assert len(levels) == 2 and levels[0] == levels[1], levels
    assert crashed.kernel_warnings() == []


AMD = replace(MACHINES["xen-strict"].with_disk(), vendor="amd")


@pytest.fixture(scope="module")
def amd() -> Transcript:
    """AMD's IOMMU in the place of VT-d. QEMU 7.2 blocks what it must, and traces no fault of it."""
    return runner.run(
        AMD,
        [
            Step("stock", SPAWN),
            pagetable.load_steps()[0],
            *dma.steps(),
            *pagetable.load_steps([POOL_PART]),
            Step("warm", SPAWN),
            Step("boosted", SPAWN),
            *pagetable.unload_steps(),
        ],
        files={**pagetable.files(), **dma.files()},
        modules=dma.MODULES,
        make_disk=dma.disk,
    )


def test_amds_iommu_is_the_one_that_runs(amd: Transcript) -> None:
    assert "AMD-Vi: IOMMU 0 Enabled." in amd.console and "Intel VT-d" not in amd.console


def test_processes_cause_no_flush_of_amds_iommu(amd: Transcript) -> None:
    assert amd.counts("stock").pages >= STOCK_FLUSHES
    assert amd.counts("boosted").pages == 0


def test_no_device_reaches_a_semi_writable_page_through_amds_iommu(amd: Transcript) -> None:
    assert dma.outcomes(amd) == KEPT_OUT
    assert amd.kernel_warnings() == []


def test_negative_control_without_the_flush_the_device_gets_through_amds_iommu() -> None:
    transcript = runner.run(
        AMD,
        [Step("load", f"xen-livepatch load {GUEST}/no-flush.livepatch"), *dma.steps()],
        files={**payload_file("no-flush"), **dma.files()},
        modules=dma.MODULES,
        make_disk=dma.disk,
    )
    assert dma.outcome(transcript, "semi_writable") == "written"
