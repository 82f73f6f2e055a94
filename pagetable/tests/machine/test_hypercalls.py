# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The hypercall interface of the running hypervisor, against trapless_pagetable.h and QEMU's trace."""

import pytest

import hypercalls
from machines import GUEST, helper_file, insmod, payload_file
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

CASES = ("version", "switches", "ranges", "ranges_of_others", *hypercalls.PROMISES)
FUZZ_CALLS = 10_000
WRONG = "wrong-done"
ANYBODYS = "range-owner-unchecked"

pytestmark = pytest.mark.machine


def _case(case: str, on: str = "", expect: int | None = None) -> Step:
    return Step(f"{on}{case}", hypercalls.run_case(case), expect=expect)


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    load, unload = pagetable.load_steps()[0], pagetable.unload_steps()[-1]
    revert = f"xen-livepatch revert {pagetable.NAME}"
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            insmod(hypercalls.TEST),
            *(_case(case, on="stock ") for case in CASES),
            *hypercalls.random_calls("stock fuzz", 10),
            load,
            *(_case(case) for case in CASES),
            *(hypercalls.cycle(length) for length in (1, 512)),
            _case("mark", expect=0),
            Step("revert while marked", revert, expect=None),
            _case("release", expect=0),
            Step("remove the test", f"rmmod {hypercalls.TEST}"),
            *hypercalls.random_calls("fuzz", FUZZ_CALLS),
            unload,
            Step(f"load {WRONG}", f"xen-livepatch load {GUEST}/{WRONG}.livepatch"),
            *hypercalls.random_calls(f"{WRONG} fuzz", FUZZ_CALLS),
            Step(f"unload {WRONG}", f"xen-livepatch revert {WRONG} && xen-livepatch unload {WRONG}"),
            Step(f"load {ANYBODYS}", f"xen-livepatch load {GUEST}/{ANYBODYS}.livepatch"),
            insmod(hypercalls.TEST, name="the test again"),
            _case("ranges_of_others", on=f"{ANYBODYS} "),
            Step(f"unload {ANYBODYS}", f"xen-livepatch revert {ANYBODYS} && xen-livepatch unload {ANYBODYS}"),
        ],
        files={
            **pagetable.files([pagetable.PAYLOAD_PART]),
            **payload_file(WRONG),
            **payload_file(ANYBODYS),
            **helper_file(hypercalls.TEST),
            **helper_file(hypercalls.MODULE),
        },
    )


@pytest.mark.parametrize("case", CASES)
def test_promise(transcript: Transcript, case: str) -> None:
    assert transcript[case].rc == 0, transcript[case].output


@pytest.mark.parametrize("case", [case for case in CASES if case not in hypercalls.PASS_ON_STOCK])
def test_negative_control_fails_on_stock_xen(transcript: Transcript, case: str) -> None:
    assert transcript[f"stock {case}"].rc != 0


@pytest.mark.parametrize("length", [1, 512])
def test_one_flush_a_call(transcript: Transcript, length: int) -> None:
    """Marking and releasing flush the domain once a call; QEMU counts the flushes, the guest its calls."""
    result = transcript[f"cycle_{length}"]
    counts = transcript.counts(f"cycle_{length}")
    assert hypercalls.one_flush_a_call(result, counts, length), result.output


def test_a_batch_invalidates_no_single_pages(transcript: Transcript) -> None:
    one, many = transcript.counts("cycle_1"), transcript.counts("cycle_512")
    assert abs(many.pages - one.pages) <= hypercalls.NOISE


def test_random_calls(transcript: Transcript) -> None:
    """Every answer is the model's; the revert that follows proves that no frame is left marked."""
    result = transcript["fuzz"]
    assert result.rc == 0, result.output
    counted = hypercalls.counters(result)
    assert counted["moved"] > 4 * FUZZ_CALLS
    assert counted["refused"] > FUZZ_CALLS // 10
    assert hypercalls.seen_by_qemu(result, transcript.counts("fuzz"))


@pytest.mark.parametrize("xen", ["stock", WRONG])
def test_negative_control_random_calls(transcript: Transcript, xen: str) -> None:
    """Stock Xen does not know the calls; the mutant reports one frame too few for some."""
    result = transcript[f"{xen} fuzz"]
    assert result.rc != 0
    assert ", expected" in result.output


def test_negative_control_ranges_of_others(transcript: Transcript) -> None:
    assert transcript[f"{ANYBODYS} ranges_of_others"].rc != 0


def test_revert_refused_while_marked(transcript: Transcript) -> None:
    result = transcript["revert while marked"]
    assert result.rc != 0
    assert "512 frames are semi-writable: not reverting" in transcript.console


def test_no_kernel_complains(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
