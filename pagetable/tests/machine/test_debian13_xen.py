# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian 13's Xen under Debian 12's kernel: the payload that is built for it holds what it promises on 12's.

One boot has the stock toolstack of that Xen load the payload, run it under the adversarial guest, let a
device at a semi-writable page, count flushes with the pool, and take it back with marks in force. The
negative controls are the payload for Debian 12's Xen, which this one must refuse, and stock Xen under the
same counts.
"""

from dataclasses import replace

import pytest

import tables
from machines import GUEST, KEPT_OUT, SPAWN, STOCK_FLUSHES, helper_file, insmod, table_test_file
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import dma
from trapless_lab.pagetable.parts import NAME

pytestmark = [
    pytest.mark.machine,
    pytest.mark.debian12("its kernel under another Xen; where that is the host's all other tests have it"),
]

DEBIAN13 = "debian13"
SEEDS, ROUNDS = range(1, 3), 20
CALLS = 1000  # compared, at least, a leg
OTHER = f"{GUEST}/other.livepatch"
LOST_OF_ROUNDS = 20
LEGS = ("boosted", "boosted, interrupted", "reverted")


@pytest.fixture(scope="module")
def boot() -> Transcript:
    load, pool = pagetable.load_steps()[0], pagetable.load_steps([pagetable.POOL_PART])[0]
    parameters = "/sys/module/hypercall_test/parameters"
    case = f"{{ echo $case >{parameters}/run || {{ dmesg | tail -5; false; }}; }}"
    return runner.run(
        replace(
            MACHINES["xen-strict"].with_icount().with_disk(), name="xen-strict with Debian 13's Xen"
        ).with_xen(artifacts.fetched_xen(DEBIAN13)),
        [
            Step("stock", SPAWN),
            Step("another Xen's", f"xen-livepatch load {OTHER}", expect=None),
            Step("nothing was loaded", "xen-livepatch list"),
            insmod(tables.MODULE),
            tables.leg("stock tables", SEEDS, ROUNDS, "record", kinds=tables.EVERY_KIND),
            load,
            Step(
                "all parts",
                f"insmod {GUEST}/hypercall_test.ko && case=version && {case} && case=switches && {case}",
            ),
            tables.leg("boosted", SEEDS, ROUNDS, "compare", kinds=tables.EVERY_KIND),
            tables.leg(
                "boosted, interrupted", SEEDS, ROUNDS, "compare", preempt=True, kinds=tables.EVERY_KIND
            ),
            *dma.steps(),
            pool,
            Step("warm", SPAWN),
            Step("flushes", SPAWN),
            Step("evict", f"case=evict && {case} && rmmod hypercall_test"),
            Step("revert with the pool loaded", pagetable.PAYLOAD_PART.unload[0].command),
            *pagetable.unload_steps([pagetable.POOL_PART]),
            tables.leg("reverted", SEEDS, ROUNDS, "compare", kinds=tables.EVERY_KIND),
            Step("stock again", SPAWN),
        ],
        files={
            **pagetable.files([pagetable.POOL_PART]),
            pagetable.PAYLOAD_PART.guest_path: File(artifacts.payload("pagetable", NAME, DEBIAN13)),
            OTHER: File(artifacts.payload("pagetable", NAME)),
            **table_test_file(),
            **helper_file("hypercall_test"),
            **dma.files(),
        },
        modules=dma.MODULES,
        make_disk=dma.disk,
    )


def test_it_is_debian_13s_xen(boot: Transcript) -> None:
    assert "Xen version 4.20" in boot.console


def test_the_payload_of_another_xen_is_refused(boot: Transcript) -> None:
    assert boot["another Xen's"].rc != 0
    assert "Nothing to list" in boot["nothing was loaded"].output
    assert "other: build-id mismatch" in boot.console


def test_every_part_is_there(boot: Transcript) -> None:
    assert boot["all parts"].rc == 0, boot["all parts"].output


@pytest.mark.parametrize("leg", LEGS)
def test_the_adversarial_guest_gets_the_same_answers(boot: Transcript, leg: str) -> None:
    stock, other = tables.parse(boot["stock tables"]), tables.parse(boot[leg])
    assert stock.ok and other.ok, other.output
    assert other.digests == stock.digests and set(stock.digests) == set(SEEDS)
    assert other.compared >= CALLS
    assert other.counters["illegal"] == 0
    assert other.counters["leaked"] <= len(SEEDS) * ROUNDS // LOST_OF_ROUNDS


def test_no_device_reaches_a_semi_writable_page(boot: Transcript) -> None:
    assert dma.outcomes(boot) == KEPT_OUT
    assert boot.counts("semi_writable").faults > 0
    assert boot.counts("normal").faults == boot.counts("released").faults == 0


def test_processes_cause_no_flush(boot: Transcript) -> None:
    assert boot.counts("stock").pages >= STOCK_FLUSHES
    assert boot.counts("flushes").pages == 0
    assert boot.counts("stock again").pages >= STOCK_FLUSHES


def test_marks_do_not_hold_it_in_place(boot: Transcript) -> None:
    assert boot["evict"].rc == 0, boot["evict"].output
    assert boot["revert with the pool loaded"].rc == 0
    assert not boot.kernel_warnings()
