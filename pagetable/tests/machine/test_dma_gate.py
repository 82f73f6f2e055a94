# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A release gate: no device reaches a semi-writable page. The negative control shows that it can fail."""

from dataclasses import replace

import pytest

from machines import GUEST, KEPT_OUT, payload_file
from trapless_lab.machines import runner
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments import dma
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine

MISTAKE = "no-flush"


def _load(payload: str) -> Step:
    return Step(f"load {payload}", f"xen-livepatch load {GUEST}/{payload}.livepatch")


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    """The gate under the product, then under a mutant of it."""
    return runner.run(
        dma.MACHINE,
        [
            _load(NAME),
            *dma.steps(),
            Step("unload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"),
            _load(MISTAKE),
            *(replace(step, name=f"{step.name} {MISTAKE}") for step in dma.steps()),
        ],
        files={**payload_file(), **payload_file(MISTAKE), **dma.files()},
        modules=dma.MODULES,
        make_disk=dma.disk,
    )


def test_no_device_reaches_a_semi_writable_page(transcript: Transcript) -> None:
    assert dma.outcomes(transcript) == KEPT_OUT
    assert transcript.counts("semi_writable").faults > 0
    assert transcript.counts("normal").faults == 0
    assert transcript.counts("released").faults == 0


def test_negative_control_without_the_flush(transcript: Transcript) -> None:
    """The stale IOTLB entry lets the device in: the gate is open and the test sees it."""
    assert dma.outcome(transcript, f"semi_writable {MISTAKE}") == "written"
