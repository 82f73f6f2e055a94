# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What is left out of a kernel, or of a Xen, in which a function that a part repeats has other bytes.

The other bytes are a breakpoint: a kernel probe on the instruction behind the function's head. The control
is the same kernel without the probes, in which nothing is left out. For Xen a payload is built from a list
that has another digest for one function.

Two CPUs run other bytes, for only on one the kernel takes the lock prefixes out of its text: that nothing is
left out there test_smp.py holds for the pool, and test_pvmmu.py for the parts of pvmmu.
"""

import pytest

import pvmmu
from machines import insmod, installed
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.installed import tool
from trapless_lab.pagetable.parts import PAYLOAD_PART, POOL_PART, PVMMU, PVMMU_PART, PVMMU_SWITCHES
from trapless_lab.releases import FAULT_AROUND_BY_FOLIOS, INSTALLED

pytestmark = pytest.mark.machine

TRACING = "/sys/kernel/tracing"
POOL = "/sys/kernel/trapless_pagetable"
FINDS_PAGES = "next_uptodate_folio" if INSTALLED in FAULT_AROUND_BY_FOLIOS else "next_uptodate_page"
PROBED = {
    **{"fault_around": FINDS_PAGES, "reuse_around": "do_wp_page"},
    # A level of the pool, and a part: both rely on it.
    **{"pmd": "__pmd_alloc", "kernel_half": "__pmd_alloc"},
}
SWITCHES = f"cd {PVMMU_SWITCHES} && cat {' '.join(pvmmu.GUEST_SWITCHES)}"
LEFT_OUT = f"cat {PVMMU_SWITCHES}/left_out {POOL}/left_out"


def _loaded(when: str) -> list[Step]:
    return [
        pvmmu.step(f"insmod pvmmu, {when}", insmod(PVMMU).command),
        pvmmu.step(f"insmod pool, {when}", insmod().command),
        pvmmu.step(f"switches, {when}", SWITCHES),
        pvmmu.step(f"left out, {when}", LEFT_OUT),
        pvmmu.step(f"status, {when}", "trapless pagetable status"),
        pvmmu.step(f"use, {when}", "spawn fork-exec -n 40 && cow --rounds 20 && filemap read 2"),
        pvmmu.step(f"hits, {when}", f"cat {POOL}/pte/hits {POOL}/pmd/hits"),
    ]


@pytest.fixture(scope="module")
def kernel() -> Transcript:
    """One boot: with the probes, then without them."""
    # Behind the call of the tracer, before which a kernel with IBT has an instruction of four bytes.
    probes = "; ".join(
        f"for at in 5 9; do echo p:known/{part} {name}+$at >>kprobe_events && break; done"
        for part, name in PROBED.items()
    )
    unload = pvmmu.step("rmmod", f"rmmod {PVMMU} && rmmod trapless_pagetable")
    return runner.run(
        MACHINES["xen-strict"],
        [
            *PAYLOAD_PART.load,
            pvmmu.step(
                "probe",
                f"mount -t tracefs t {TRACING}; cd {TRACING} && {probes}; echo 1 >events/known/enable",
            ),
            *_loaded("probed"),
            pvmmu.step("turn on", f"echo 1 >{PVMMU_SWITCHES}/fault_around; echo rc $?", None),
            pvmmu.step("all on", "trapless pagetable enable all"),
            pvmmu.step("one on", "trapless pagetable enable fault_around", None),
            unload,
            pvmmu.step("unprobe", f"cd {TRACING} && echo 0 >events/known/enable && echo >kprobe_events"),
            *_loaded("as it was"),
        ],
        files={**pagetable.files((PAYLOAD_PART, POOL_PART, PVMMU_PART)), **tool()},
    )


@pytest.fixture(scope="module")
def xen() -> Transcript:
    """One boot: the tool loads a payload that was built without l1_update and ranges."""
    unknown = artifacts.mutant("pagetable", "payload-unknown-build", f"{pagetable.NAME}.livepatch")
    one = f"{PVMMU_SWITCHES}/xen_l1_update"
    return runner.run(
        MACHINES["xen-strict"],
        [
            pvmmu.step("load", "trapless pagetable load"),
            pvmmu.step("status", "trapless pagetable status"),
            pvmmu.step("switches", f"cd {PVMMU_SWITCHES} && cat {' '.join(pvmmu.XEN_SWITCHES)}"),
            pvmmu.step("turn on", f"echo 1 >{one}; echo rc $?; cat {one}", None),
            pvmmu.step("all off", "trapless pagetable disable all"),
            pvmmu.step("all on", "trapless pagetable enable all"),
            pvmmu.step("use", "spawn fork-exec -n 40 && cow --rounds 20"),
            pvmmu.step("unload", "trapless pagetable unload"),
        ],
        files={**installed(), f"/usr/lib/trapless/this-build/{pagetable.NAME}.livepatch": File(unknown)},
    )


def test_a_payload_serves_without_what_is_left_out(xen: Transcript) -> None:
    assert xen["switches"].output.split() == ["1", "0", "1", "0"]
    assert "rc 0" not in xen["turn on"].output and xen["turn on"].output.split()[-1] == "0"
    assert "xen_zero_runs" in xen["all on"].output and "xen_l1_update" not in xen["all on"].output
    assert xen.kernel_warnings() == []


def test_the_tool_says_what_the_payload_is_without(xen: Transcript) -> None:
    for step, says in (
        ("load", "without l1_update: "),
        ("load", "without ranges: "),
        ("status", "xen_l1_update left out: "),
        ("status", "xen_ranges left out: "),
    ):
        (line,) = (line for line in xen[step].output.splitlines() if says in line)
        assert "mod_l1_entry" in line
    assert "xen_table_refs on, xen_zero_runs on" in xen["status"].output


def test_nothing_is_left_out_of_a_known_kernel(kernel: Transcript) -> None:
    assert kernel["left out, as it was"].output.split() == []
    assert kernel["switches, as it was"].output.split() == ["1"] * len(pvmmu.GUEST_SWITCHES)
    assert "left out" not in kernel["status, as it was"].output


def test_what_is_not_known_is_left_out(kernel: Transcript) -> None:
    lines = kernel["left out, probed"].output.splitlines()
    assert {line.partition(":")[0] for line in lines} == set(PROBED)
    for part, name in PROBED.items():
        assert any(line.startswith(f"{part}: {name} (") for line in lines)


def test_nothing_else_is(kernel: Transcript) -> None:
    states = dict(zip(pvmmu.GUEST_SWITCHES, kernel["switches, probed"].output.split(), strict=True))
    assert {name for name, state in states.items() if state == "0"} == PROBED.keys() - {"pmd"}
    assert "rc 0" not in kernel["turn on"].output


def test_a_level_that_is_left_out_stays_stock(kernel: Transcript) -> None:
    for when, is_served in (("probed", False), ("as it was", True)):
        pte, pmd = map(int, kernel[f"hits, {when}"].output.split())
        assert pte > 0 and (pmd > 0) == is_served


def test_the_tool_says_so(kernel: Transcript) -> None:
    for part, name in PROBED.items():
        assert f"{part} left out: {name} (" in kernel["status, probed"].output
    assert "fault_around" not in kernel["all on"].output and "walk" in kernel["all on"].output
    assert "trapless pagetable status says why" in kernel["one on"].output


def test_the_kernel_is_content(kernel: Transcript) -> None:
    assert kernel.kernel_warnings() == []
