# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A release gate: no device reaches a semi-writable page. The negative control shows that it can fail."""

import pytest

from machines import GUEST, KEPT_OUT, payload_file
from trapless_lab.machines import runner
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments import dma
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine


def _gate(mistake: str = "") -> Transcript:
    return runner.run(
        dma.MACHINE,
        [Step("load", f"xen-livepatch load {GUEST}/{mistake or NAME}.livepatch"), *dma.steps()],
        files={**payload_file(mistake), **dma.files()},
        modules=dma.MODULES,
        make_disk=dma.disk,
    )


def test_no_device_reaches_a_semi_writable_page() -> None:
    transcript = _gate()
    assert dma.outcomes(transcript) == KEPT_OUT
    assert transcript.counts("semi_writable").faults > 0
    assert transcript.counts("normal").faults == 0
    assert transcript.counts("released").faults == 0


def test_negative_control_without_the_flush() -> None:
    """The stale IOTLB entry lets the device in: the gate is open and the test sees it."""
    transcript = _gate("no-flush")
    assert dma.outcome(transcript, "semi_writable") == "written"
