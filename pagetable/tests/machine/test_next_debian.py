# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Xen of Debian's next release, as sid has it today, made by a compiler years newer than the host's.

Nobody has looked at that build when this test runs. What fails here fails one day for everybody who upgrades:
a form of code that no claim or passage knows yet. The witnesses are QEMU's count of flushes and the stock Xen
itself, asked the same by the differential test.

What this test cannot see: parts that repeat decisions, which no unknown build gets.
"""

from functools import cache
from pathlib import Path

import pytest

import builds
import probe
from builds import Build
from layout_checker.known_functions import PARTS
from trapless_lab import artifacts, host
from trapless_lab.pagetable import parts as pagetable

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("sid's Xen is fetched and proven, two boots of it: some 5 minutes of a processor"),
]

SEEDS, ROUNDS = range(7000, 7004), 20


def files() -> tuple[Path, Path]:
    """Image and symbols."""
    folder = artifacts.fetched_xen("next-debian")
    (image,) = folder.glob("boot/xen-*.gz")
    return image, folder / f"usr/lib/debug/boot/{image.stem.replace('xen-', 'xen-syms-', 1)}"


@cache
def findings() -> probe.Findings:
    return probe.look(*files())


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The payload for it; the toolstack is its own."""
    return builds.build("sid", *files(), tmp_path_factory.mktemp("sid"), artifacts.fetched_xen("next-debian"))


def test_every_item_and_every_loop_is_proven() -> None:
    found = findings()
    assert found.builds and found.refused == {}
    assert found.proven_loops == len(found.loops)


def test_what_repeats_decisions_is_left_out_unless_the_build_is_known() -> None:
    assert set(findings().left_out) <= {part.name for part in PARTS}


def test_processes_cause_no_flush(payload: Build, tmp_path: Path) -> None:
    """And the payload for the host's Xen is refused, and without one there are flushes."""
    of_host = Build("the host's", host.xen().image, artifacts.payload("pagetable", pagetable.NAME), "")
    assert builds.flushes(payload, [of_host], tmp_path / "log").wrong == []


def test_the_adversarial_guest_gets_the_same_answers(payload: Build, tmp_path: Path) -> None:
    assert builds.same_as_stock(payload, SEEDS, ROUNDS, tmp_path / "log").wrong == []
