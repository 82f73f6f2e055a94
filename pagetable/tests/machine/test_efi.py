# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Xen's image for UEFI: it has a build-id and a payload of its own, with which there is no flush."""

import re
from dataclasses import replace

import pytest

from machines import GUEST, SPAWN, STOCK_FLUSHES
from trapless_lab import artifacts, host
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

pytestmark = pytest.mark.machine

DEBIAN13 = "debian13"
OTHER = f"{GUEST}/other.livepatch"
# The pool may still grow: there is no -icount, with which the firmware is slow.
BOOSTED_FLUSHES = STOCK_FLUSHES // 20


LATER = pytest.param(DEBIAN13, marks=pytest.mark.long("another boot; make check has Debian 12's image"))


@pytest.fixture(scope="module", params=["", LATER])
def boot(request: pytest.FixtureRequest) -> Transcript:
    release: str = request.param
    root = artifacts.fetched_xen(release) if release else host.ROOT
    machine = replace(MACHINES["xen-strict"], name=f"UEFI {release}".strip()).with_xen(root)
    files = {
        **pagetable.files(),
        pagetable.PAYLOAD_PART.guest_path: File(
            artifacts.payload("pagetable", f"efi/{pagetable.NAME}", release)
        ),
        OTHER: File(artifacts.payload("pagetable", pagetable.NAME, release)),
    }
    return runner.run(
        machine.with_image(host.xen(root).image.with_suffix(".efi")),
        [
            Step("stock", SPAWN),
            Step("the other image's", f"xen-livepatch load {OTHER}", expect=None),
            Step("nothing was loaded", "xen-livepatch list"),
            *pagetable.load_steps(),
            Step("warm", SPAWN),
            Step("boosted", SPAWN),
            *pagetable.unload_steps(),
            Step("stock again", SPAWN),
        ],
        files=files,
    )


def test_its_payload_works(boot: Transcript) -> None:
    assert boot.counts("stock").pages >= STOCK_FLUSHES
    assert boot.counts("boosted").pages <= BOOSTED_FLUSHES
    assert boot.counts("stock again").pages >= STOCK_FLUSHES
    assert not boot.kernel_warnings()


def test_the_other_images_payload_is_refused(boot: Transcript) -> None:
    assert "failed" in boot["the other image's"].output
    assert "Nothing to list" in boot["nothing was loaded"].output
    # In the words of 4.17 or of 4.20.
    assert re.search(r"check against hypervisor build-id failed|other: build-id mismatch", boot.console)
