# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A PV domU with a device of its own marks frames, and however the domU ends, nothing is left behind.

The device is the machine's AHCI controller, given to the domU by Xen's own toolstack: its reads show what a
device can reach. Xen shows what is left of a domain: by its list, its free memory, and whether the payload
can be reverted, which is refused while a frame is marked. The negative control is a payload that does not
drop a dead domain's marks.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

import hypercalls
from device_domu import AHCI, DOMU, FIRST_MARK, LEFT, WITH_DISK, left, nothing_left
from machines import GUEST, KEPT_OUT, helper_file, insmod, payload_file
from trapless_lab.machines import domu, runner
from trapless_lab.machines.domu import DomU
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import dma
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine

ZOMBIE = "zombie"

CASES = ("version", "twice", "not_ours", "page_table", "xen_page", "bad_in_the_middle", "contents")
FUZZ_CALLS = 1_000
PROCESSES = 100
STOCK_FLUSHES = 9  # per process: one for each of its tables

_LOAD = Step("load", f"xen-livepatch load {GUEST}/{NAME}.livepatch")
_UNLOAD = Step("unload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}")
_SPAWN = f"spawn fork-exit -n {PROCESSES} >/dev/null"


def _in_domu(guest: DomU, case: str) -> Step:
    return guest.step(case, hypercalls.run_case(case), expect=None)


def _run_with_disk(steps: Sequence[Step]) -> Transcript:
    """Start the domU that has a disk controller, run steps, and take the payload out again."""
    guest = WITH_DISK
    before = [domu.toolstack(), _LOAD, *FIRST_MARK, domu.assignable(AHCI), left("before"), guest.create()]
    return runner.run(
        dma.MACHINE,
        [*before, *steps, domu.console(), _UNLOAD],
        files={**domu.tree(guest), **payload_file(), **helper_file(hypercalls.TEST)},
        modules=domu.PCI_MODULES,
        make_disk=dma.disk,
    )


@pytest.fixture(scope="module")
def with_device() -> Transcript:
    """A domU with a disk controller, tried in every way and destroyed with frames marked."""
    guest = WITH_DISK
    return _run_with_disk(
        [
            guest.step("stock", _SPAWN),
            *map(guest.inside, pagetable.load_steps([pagetable.POOL_PART])),
            guest.step("pool", _SPAWN),
            *map(guest.inside, pagetable.unload_steps([pagetable.POOL_PART])),
            guest.inside(insmod(hypercalls.TEST)),
            *(_in_domu(guest, case) for case in CASES),
            guest.inside(insmod(hypercalls.MODULE)),
            guest.inside(hypercalls.fuzz("fuzz", 2, FUZZ_CALLS)),
            *map(guest.inside, dma.steps()),
            _in_domu(guest, "mark"),
            Step("revert while marked", f"xen-livepatch revert {NAME}", expect=None),
            *map(guest.inside, pagetable.load_steps([pagetable.POOL_PART])),
            guest.destroy(),
            Step("forgotten", guest.gone()),
            left("destroyed"),
        ]
    )


@pytest.mark.parametrize("case", CASES)
def test_promise(with_device: Transcript, case: str) -> None:
    assert with_device[case].rc == 0, with_device[case].output


def test_random_calls(with_device: Transcript) -> None:
    """Among them calls that only the hardware domain may make, and frames of dom0."""
    result = with_device["fuzz"]
    assert result.rc == 0, result.output
    counted = hypercalls.counters(result)
    assert counted["moved"] > FUZZ_CALLS
    # Every process of dom0 and of the domU flushes single pages; whole domains are flushed for marks.
    counts = with_device.counts("fuzz")
    assert counted["domain_flushes"] <= counts.domain <= counted["domain_flushes"] + hypercalls.NOISE


def test_its_device_does_not_reach_a_marked_page(with_device: Transcript) -> None:
    assert dma.outcomes(with_device) == KEPT_OUT
    assert with_device.counts("semi_writable").faults > 0


def test_no_revert_while_a_domu_has_marks(with_device: Transcript) -> None:
    assert with_device["revert while marked"].rc != 0
    assert "512 frames are semi-writable: not reverting" in with_device.console


def test_destroyed_with_frames_marked(with_device: Transcript) -> None:
    """Frames that the test marked, and those of the guest module."""
    nothing_left(with_device, "before", "destroyed")
    assert with_device.kernel_warnings() == []
    assert domu.kernel_warnings(with_device) == []


def test_flushes_go(with_device: Transcript) -> None:
    """The remaining flushes are those of starting the command, in dom0 and in the domU."""
    stock, left = with_device.counts("stock").pages, with_device.counts("pool").pages
    assert stock > PROCESSES * STOCK_FLUSHES
    assert stock - left > 0.98 * PROCESSES * STOCK_FLUSHES


@pytest.fixture(scope="module")
def with_pool() -> Transcript:
    """The guest module in a domU that is saved, restored, and crashes; then the payload that forgets."""
    guest = DOMU
    save = f"xl save {guest.name} /tmp/save >/tmp/log 2>&1 && xl restore /tmp/save >/tmp/log 2>&1"
    return runner.run(
        MACHINES["xen-strict"],
        [
            domu.toolstack(),
            _LOAD,
            *FIRST_MARK,
            left("before"),
            guest.create(),
            *map(guest.inside, pagetable.load_steps([pagetable.POOL_PART])),
            guest.step("spawn", _SPAWN),
            guest.inside(replace(pagetable.pool_step(), name="at home")),
            Step("save and restore", f"{save} || {{ cat /tmp/log; false; }}", timeout_s=300),
            Step("remove the image", "rm /tmp/save"),
            guest.step("spawn again", _SPAWN),
            guest.inside(replace(pagetable.pool_step(), name="restored")),
            Step("crash", f"{guest.run('echo c >/proc/sysrq-trigger')}; {guest.gone()}", expect=None),
            left("crashed"),
            domu.console(),
            _UNLOAD,
            Step(f"load {ZOMBIE}", f"xen-livepatch load {GUEST}/{ZOMBIE}.livepatch"),
            guest.create(),
            guest.inside(insmod(hypercalls.TEST)),
            _in_domu(guest, "mark"),
            Step("forget", f"xl destroy {guest.name}; sleep 2; {LEFT}"),
            Step("revert", f"xen-livepatch revert {ZOMBIE}", expect=None),
        ],
        files={
            **domu.tree(guest),
            **payload_file(),
            **payload_file(ZOMBIE),
            **helper_file(hypercalls.TEST),
        },
        modules=domu.MODULES,
    )


@pytest.mark.long("a domU that is saved, restored and crashes; make check has one with a device")
def test_the_pool_is_saved_and_restored(with_pool: Transcript) -> None:
    """The restored domain has other frames, none of them marked, and the module marks new ones."""
    before, after = (
        sum(level["hits"] for level in pagetable.pool_sizes(with_pool[step]).values())
        for step in ("at home", "restored")
    )
    assert before > PROCESSES
    assert after > before + PROCESSES


@pytest.mark.long("a domU that is saved, restored and crashes; make check has one with a device")
def test_crashed_with_frames_marked(with_pool: Transcript) -> None:
    nothing_left(with_pool, "before", "crashed")
    assert with_pool.kernel_warnings() == []


@pytest.mark.long("a domU that is saved, restored and crashes; make check has one with a device")
def test_negative_control_zombie(with_pool: Transcript) -> None:
    """A payload that does not drop a dead domain's marks: the domain stays, and so does the payload."""
    assert "(null)" in with_pool["forget"].output
    assert with_pool["revert"].rc != 0
    assert "512 frames are semi-writable: not reverting" in with_pool.console


@pytest.mark.long("a domU whose image stock Xen cannot restore either")
def test_saved_with_its_device() -> None:
    """The pool is drained before the image is made, so nothing of the domain stays.

    The image cannot be used: with stock Xen, too, a domain that had a device crashes when restored.
    """
    guest = WITH_DISK
    transcript = _run_with_disk(
        [
            *map(guest.inside, pagetable.load_steps([pagetable.POOL_PART])),
            guest.step("spawn", _SPAWN),
            guest.inside(replace(pagetable.pool_step(), name="at home")),
            Step("revert while it serves", f"xen-livepatch revert {NAME}", expect=None),
            Step("save", f"xl save {guest.name} /tmp/save && {guest.gone()}", timeout_s=300),
            Step("remove the image", "rm /tmp/save"),
            left("saved"),
        ]
    )
    assert sum(level["cached"] for level in pagetable.pool_sizes(transcript["at home"]).values()) > 0
    assert transcript["revert while it serves"].rc != 0
    nothing_left(transcript, "before", "saved")
    assert domu.kernel_warnings(transcript) == []
