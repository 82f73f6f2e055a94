# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results that a variant keeps from the installed hypervisor equal those of a full search of the variant."""

from __future__ import annotations

import random
import struct

import pytest

from layout_checker import claim
from layout_checker.facts import check_all
from variants import HEADER, Variant, installed, needs_xen, of_debian12

pytestmark = [needs_xen, of_debian12]

PATCHES = 40


def change(variant: Variant, seed: int) -> None:
    """Write branches, pointers and noise into all sections, and remove names."""
    chance = random.Random(seed)
    target = variant.symbol("iommu_legacy_map").address + 2
    sections = [section for section in variant.sections if len(section.data) > 256]
    for _ in range(PATCHES):
        section = chance.choice(sections)
        place = section.address + chance.randrange(len(section.data) - 16)
        forms = (
            b"\xe8" + struct.pack("<i", target - place - 5),
            b"\x0f\x84" + struct.pack("<i", target - place - 6),
            struct.pack("<Q", target),
            struct.pack("<i", target - place),
            bytes(chance.randrange(256) for _ in range(chance.randrange(1, 12))),
        )
        variant.poke(place, chance.choice(forms), image_only=chance.random() < 0.2)
    for name in chance.sample(sorted(installed()._functions), 3):
        variant.rename(name, "")


@pytest.mark.parametrize("seed", [1, 2])
def test_kept_results_equal_those_of_a_full_search(seed: int) -> None:
    kept, searched = Variant(), Variant(keep=False)
    change(kept, seed)
    change(searched, seed)
    assert kept._direct_branches == searched._direct_branches
    assert kept._code_pointers == searched._code_pointers
    verdicts = check_all(HEADER, kept).verdicts
    for kept_for_all_builds in (claim.ways_from, claim.places_of):
        kept_for_all_builds.cache_clear()
    assert verdicts == check_all(HEADER, searched).verdicts


def test_negative_control_everything_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variant, "_exchange", lambda *_: None)
    kept, searched = Variant(), Variant(keep=False)
    change(kept, 1)
    change(searched, 1)
    assert kept._direct_branches != searched._direct_branches
    assert kept._code_pointers != searched._code_pointers


def test_the_installed_hypervisor_is_not_changed() -> None:
    variant = Variant()
    flat, symbols = installed().image.flat, set(installed().symbols)
    change(variant, 3)
    assert installed().image.flat == flat and set(installed().symbols) == symbols
    assert not check_all(HEADER, installed()).refused
