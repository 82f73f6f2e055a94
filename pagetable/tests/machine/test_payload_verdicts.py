# SPDX-License-Identifier: Apache-2.0 OR MIT
"""trapless-lab verify-payload: a payload is judged in a machine before a host has it.

What this cannot see: a payload that is wrong where `trapless pagetable verify` does not look; test_verify.py
and the mutants of test_tables_differential.py are its measure. Nor a host's own processor and devices.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trapless_lab import artifacts, cli, host
from trapless_lab.machines.pair import PAIRS
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine

BROKEN = "skip-unchecked"
OTHER_BUILD = "wrong-build-id"
DEBIAN13 = "debian13"


def verify(image: Path, payload: Path, *options: str) -> Result:
    return CliRunner().invoke(cli.main, ["verify-payload", str(image), str(payload), *options])


def mutant(mistake: str) -> Path:
    return artifacts.mutant("pagetable", f"payload-{mistake}", f"{NAME}.livepatch")


@pytest.mark.long("every call of a verify; make check has one in test_verify.py")
def test_the_product_passes() -> None:
    ran = verify(host.xen().image, artifacts.payload("pagetable", NAME))
    assert ran.exit_code == 0, ran.output
    assert "passed: " in ran.stdout and " calls about page tables answered as by stock Xen" in ran.stdout


def test_negative_control_a_broken_payload_does_not_pass() -> None:
    ran = verify(host.xen().image, mutant(BROKEN))
    assert ran.exit_code == 1, ran.output
    assert "WRONG: got     : seed 1 call " in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("not passed: ")


@pytest.mark.long(
    "a boot for a refusal; make check has load's in test_tool.py, and the verdict in test_verify_payload.py"
)
def test_a_payload_of_another_build_is_not_judged() -> None:
    """Before its first call verify refuses, and says why."""
    ran = verify(host.xen().image, mutant(OTHER_BUILD))
    assert ran.exit_code == 3 and ran.stdout == ""
    assert "nothing was judged: verify gave no report" in ran.stderr and "is for build " in ran.stderr


@pytest.mark.debian12("fetched only there")
@pytest.mark.long("the same on another release, 90 s of a processor")
def test_another_release_passes_with_its_own_toolstack() -> None:
    xen = host.xen(PAIRS[DEBIAN13].xen_root)
    payload = artifacts.payload("pagetable", NAME, DEBIAN13)
    ran = verify(xen.image, payload, "--packages", str(xen.root))
    assert ran.exit_code == 0, ran.output
    # The control: the host has the toolstack of another release only.
    without = verify(xen.image, payload)
    assert without.exit_code == 3 and "xen-utils-4.20" in without.stderr


@pytest.mark.long("the same for the image that UEFI starts, 90 s of a processor")
def test_the_image_that_uefi_starts_passes() -> None:
    image = host.xen().image.with_suffix(".efi")
    ran = verify(image, artifacts.payload("pagetable", f"efi/{NAME}"))
    assert ran.exit_code == 0, ran.output
