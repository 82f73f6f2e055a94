# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The example VMM of docs/dirty.md, which keeps a copy of guest memory: on stock kvm_amd, in the emulator.

The witness is memory itself: the program compares the copy with the memory when the guest stands still. The
control is the same program without what libdirty reports.
"""

import re

import pytest

from trapless_lab import artifacts
from trapless_lab.machines import initramfs, nested, runner
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

PROGRAM = "guest_memory"
KINDS = ("private", "memfd", "hugetlb")
# Those of this kernel that see what a guest writes in each kind of memory.
BACKENDS = ("soft-dirty", "uffd-sync")


def _step(name: str, arguments: str, expect: int) -> Step:
    return Step(name, f"{PROGRAM} --rounds 10 {arguments}", timeout_s=200, expect=expect)


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    """One boot: every kind of memory by each back end, and the controls."""
    good = [
        _step(f"{kind} {name}", f"--memory {kind} --backend {name}", 0) for kind in KINDS for name in BACKENDS
    ]
    controls = [
        _step("without libdirty", "--memory private --without libdirty", 1),
        _step("without any", "--memory memfd --without libdirty --without kvm", 1),
        # What the guest writes libdirty sees as well.
        _step("without kvm", "--memory memfd --backend uffd-sync --without kvm --without bitmap", 0),
    ]
    return runner.run(
        nested.machine(),
        [Step("huge pages", "echo 16 >/proc/sys/vm/nr_hugepages"), *good, *controls],
        files=initramfs.program(artifacts.program(f"examples/{PROGRAM}")),
        modules=nested.OUTER_MODULES,
    )


def _counted(transcript: Transcript, step: str) -> tuple[int, int, int]:
    """Return the guest's runs, the pages copied and those that were wrong."""
    output = transcript[step].output.strip()
    line = re.search(r"(\d+) runs of the guest, (\d+) pages copied, (\d+) wrong$", output)
    assert line, output
    runs, copied, wrong = (int(number) for number in line.groups())
    return runs, copied, wrong


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_is_the_memory(transcript: Transcript, kind: str, name: str) -> None:
    runs, copied, wrong = _counted(transcript, f"{kind} {name}")
    assert wrong == 0 and runs >= 10 and copied > 0
    assert f"by {name}:" in transcript[f"{kind} {name}"].output


def test_a_copy_without_libdirty_is_wrong(transcript: Transcript) -> None:
    assert _counted(transcript, "without libdirty")[2] > 0
    assert _counted(transcript, "without any")[2] > _counted(transcript, "without libdirty")[2]


def test_libdirty_alone_sees_the_guest(transcript: Transcript) -> None:
    assert _counted(transcript, "without kvm")[2] == 0


def test_no_kernel_complains(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
