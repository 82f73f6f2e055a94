# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pairs of a Xen and a Linux: what of a machine they change, and that nothing of another pair is in it."""

from pathlib import Path

import pytest

from trapless_lab import catalogue, host
from trapless_lab.errors import LabError
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.pair import DEFAULT, PAIRS
from trapless_lab.pagetable import parts

pytestmark = pytest.mark.debian12("another host has one pair")

XEN, BARE = MACHINES["xen-strict"], MACHINES["bare"]
BACKPORTS, DEBIAN13 = PAIRS.get("debian12-backports", DEFAULT), PAIRS["debian13"]
FILES = {
    "pagetable/debian13/versions": "xen-utils-4.20 4.20.4-2\nxen-hypervisor-4.20-amd64 4.20.4-1\n",
    "pagetable/debian13/boot/xen-4.20-amd64.gz": "",
    "linux/6.12-deb13/versions": "linux-kbuild-6.12 6.12.1-1\nlinux-image-6.12.1-amd64 6.12.1-2\n",
    "linux/6.12-deb13/release": "6.12.1-amd64\n",
    "linux/6.12-deb13/vmlinuz": "",
    "linux/6.12-deb13/lib/modules/x": "",
}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build tree with Debian 13's packages, and nothing that was built for them."""
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_default_changes_nothing() -> None:
    assert [DEFAULT.machine(machine) for machine in (XEN, BARE)] == [XEN, BARE]
    assert (DEFAULT.settling, DEFAULT.versions()) == ((), {"pair": "debian12"})


def test_a_pair_brings_its_kernel_and_its_xen(built: Path) -> None:
    assert (BACKPORTS.machine(XEN).linux, BACKPORTS.machine(XEN).xen_root) == ("6.12-deb12", host.ROOT)
    assert DEBIAN13.machine(XEN).linux == DEBIAN13.machine(BARE).linux == "6.12-deb13"
    assert DEBIAN13.machine(XEN).xen_root == built / "pagetable/debian13"
    assert DEBIAN13.machine(BARE).xen_root == host.ROOT
    assert [step.name for step in DEBIAN13.settling] == ["settle"]


@pytest.mark.usefixtures("built")
def test_the_versions_are_those_that_are_booted() -> None:
    versions = {"pair": "debian13", "linux": "6.12.1-amd64 (6.12.1-2)", "xen": "4.20.4-1"}
    assert DEBIAN13.versions() == versions


def test_nothing_of_another_pair_takes_the_place_of_what_is_missing(built: Path) -> None:
    for part, product in (
        (parts.PAYLOAD_PART, f"pagetable/debian13-payload/{parts.NAME}.livepatch"),
        (parts.POOL_PART, f"modules/6.12-deb13/pagetable/pool/{parts.NAME}.ko"),
        (parts.PVMMU_PART, f"modules/6.12-deb13/pagetable/pvmmu/{parts.PVMMU}.ko"),
    ):
        others = product.replace("debian13-payload", "xen").replace("modules/6.12-deb13/", "")
        for path in (built / others, built / product):
            with pytest.raises(LabError, match="make -C pagetable"):
                part.built(DEBIAN13)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        assert part.built(DEBIAN13) == built / product


def test_experiments_know_their_pairs() -> None:
    every = catalogue.experiments()
    assert {name for name, entry in every.items() if DEBIAN13.name in entry.pairs} == {
        *("process-latency", "pagetable-flushes", "fork-dirty", "pv-operations"),
    }
    assert all(DEFAULT.name in entry.pairs and set(entry.pairs) <= set(PAIRS) for entry in every.values())
