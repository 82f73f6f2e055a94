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

CASES = (
    "version",
    "unknown_operation",
    "switches",
    "other_operations",
    "older_module",
    "bad_pointer",
    "bad_count",
    "not_ours",
    "twice",
    "page_table",
    "xen_page",
    "bad_in_the_middle",
    "contents",
)
# These cases expect only refusals, which stock Xen gives, too.
PASS_ON_STOCK = ("unknown_operation", "other_operations", "older_module")
# Cycles of marking and releasing that the test module makes in one case.
CYCLES = 100
# A call of many pages moves at least this many on average, even if interrupted: one flush serves them all.
FEWEST_PAGES_A_CALL = 64
NOISE = hypercalls.NOISE
FUZZ_CALLS = 10_000
WRONG = "wrong-done"

pytestmark = pytest.mark.machine


def _case(case: str, on: str = "", expect: int | None = None) -> Step:
    command = f"echo {case} >/sys/module/hypercall_test/parameters/run || {{ dmesg | tail -5; false; }}"
    return Step(f"{on}{case}", command, expect=expect)


def _cycle(length: int) -> Step:
    # Shell built-ins only: each further process would cause flushes.
    parameters = "/sys/module/hypercall_test/parameters"
    command = f"echo cycle_{length} >{parameters}/run && read -r calls <{parameters}/calls && echo $calls"
    return Step(f"cycle_{length}", command)


def _fuzz(name: str, calls: int) -> list[Step]:
    loaded = insmod(hypercalls.MODULE, name=f"load for {name}")
    return [loaded, hypercalls.fuzz(name, 1, calls), Step(f"end of {name}", f"rmmod {hypercalls.MODULE}")]


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    load, unload = pagetable.load_steps()[0], pagetable.unload_steps()[-1]
    revert = f"xen-livepatch revert {pagetable.NAME}"
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            insmod("hypercall_test"),
            *(_case(case, on="stock ") for case in CASES),
            *_fuzz("stock fuzz", 10),
            load,
            *(_case(case) for case in CASES),
            *(_cycle(length) for length in (1, 512)),
            _case("mark", expect=0),
            Step("revert while marked", revert, expect=None),
            _case("release", expect=0),
            Step("remove the test", "rmmod hypercall_test"),
            *_fuzz("fuzz", FUZZ_CALLS),
            unload,
            Step(f"load {WRONG}", f"xen-livepatch load {GUEST}/{WRONG}.livepatch"),
            *_fuzz(f"{WRONG} fuzz", FUZZ_CALLS),
            Step(f"unload {WRONG}", f"xen-livepatch revert {WRONG} && xen-livepatch unload {WRONG}"),
        ],
        files={
            **pagetable.files([pagetable.PAYLOAD_PART]),
            **payload_file(WRONG),
            **helper_file("hypercall_test"),
            **helper_file(hypercalls.MODULE),
        },
    )


@pytest.mark.parametrize("case", CASES)
def test_promise(transcript: Transcript, case: str) -> None:
    assert transcript[case].rc == 0, transcript[case].output


@pytest.mark.parametrize("case", [case for case in CASES if case not in PASS_ON_STOCK])
def test_negative_control_fails_on_stock_xen(transcript: Transcript, case: str) -> None:
    assert transcript[f"stock {case}"].rc != 0


@pytest.mark.parametrize("length", [1, 512])
def test_one_flush_a_call(transcript: Transcript, length: int) -> None:
    """Marking and releasing flush the domain once a call; QEMU counts the flushes, the guest its calls."""
    case = f"cycle_{length}"
    assert transcript[case].rc == 0, transcript[case].output
    calls = int(transcript[case].output)
    # After a softirq has cut a call short, it is repeated for the rest; how often depends on the clock.
    assert 2 * CYCLES <= calls <= 2 * CYCLES * max(1, length // FEWEST_PAGES_A_CALL)
    counts = transcript.counts(case)
    assert calls <= counts.domain <= calls + NOISE
    assert counts.everything == 0


def test_a_batch_invalidates_no_single_pages(transcript: Transcript) -> None:
    one, many = transcript.counts("cycle_1"), transcript.counts("cycle_512")
    assert abs(many.pages - one.pages) <= NOISE


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


def test_revert_refused_while_marked(transcript: Transcript) -> None:
    result = transcript["revert while marked"]
    assert result.rc != 0
    assert "512 frames are semi-writable: not reverting" in transcript.console


def test_no_kernel_complains(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
