# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Zero runs in a machine: applied and reverted repeatedly, refused where they must be, and effective.

test_tables_differential.py checks that every table has the same result, and
pagetable/tests/prove/test_find_zero_runs.py what each trampoline does.
"""

import pytest

from machines import GUEST, payload_file
from trapless_lab.experiment import workload
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine

CYCLES = 5
# Stock spends about 240,000 instructions of fork and exit on entries that are zero.
# What differs from run to run, with the time since boot and the host's load, was 50,000 at most.
SAVED_NS = 150_000 * workload.NS_PER_INSTRUCTION

_LOAD = f"xen-livepatch load {GUEST}/{NAME}.livepatch"
_UNLOAD = f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"
_SPAWN = "spawn fork-exit -n 5"


_CYCLE = f"{_UNLOAD} && {_SPAWN} && {_LOAD} && {_SPAWN}"


def _spawn(name: str, mode: str = "fork-exit") -> Step:
    # The first processes after a boot cost more: the kernel's caches fill.
    return Step(name, f"spawn {mode} -w 50 -n 50")


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    """The refusal, then stock, boosted, reverted and applied a few times, and stock again."""
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            _spawn("stock"),
            Step("wrong loop", f"xen-livepatch load {GUEST}/wrong-loop.livepatch", expect=None),
            Step("nothing was loaded", "xen-livepatch list"),
            _spawn("refused"),
            Step("load", _LOAD),
            _spawn("boosted"),
            Step("cycles", f"for i in $(seq {CYCLES}); do {_CYCLE} || exit 1; done", timeout_s=300),
            _spawn("boosted again"),
            Step("unload", _UNLOAD),
            _spawn("stock again"),
        ],
        files={**payload_file(), **payload_file("wrong-loop")},
    )


def _fork_exit_ns(transcript: Transcript, step: str) -> int:
    return workload.ns_per_process(transcript[step], "fork_exit")


def test_a_loop_that_is_not_there_is_refused(transcript: Transcript) -> None:
    assert transcript["wrong loop"].rc != 0
    assert NAME not in transcript["nothing was loaded"].output
    assert _fork_exit_ns(transcript, "refused") > _fork_exit_ns(transcript, "boosted") + SAVED_NS


def test_zero_entries_cost_little(transcript: Transcript) -> None:
    """An instruction count, not a time: 2 ns each."""
    for stock in ("stock", "stock again"):
        for boosted in ("boosted", "boosted again"):
            assert _fork_exit_ns(transcript, boosted) < _fork_exit_ns(transcript, stock) - SAVED_NS


def test_no_kernel_complains(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
