# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A Linux guest that changes its code while it is translated: modules loaded in turn into the same memory,
jump labels, probes, code generated at run time, translation disabled and enabled again.

The modules (``module/*.c``) check what their code computes. Each has a negative control, which behaves as if
old code were executed and must refuse to be loaded. Guests under plain KVM and translated ones load the same
modules and print the same, except for addresses.
"""

import re
from dataclasses import dataclass

import pytest

from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

ONE, OTHER = "privileged", "privileged_other"
MODULES = (ONE, OTHER, "labels", "generated", "probes", "renew")
# The guest's allocator gives every sixth module the pages of the first.
EXCHANGED = (ONE, OTHER, OTHER, ONE, ONE, OTHER, OTHER, ONE, ONE, OTHER, OTHER, ONE)
CONTROLS = tuple(f"!{name}:stale=1" for name in ("privileged", "labels", "generated", "probes"))
CHANGES = ("labels", "generated", "probes", "renew:execute=@trapless_bt_execute", "probes")
LOADED = (*EXCHANGED, *CONTROLS, *CHANGES)
RUN = f"run=modules,fork,textsum modules={','.join(LOADED)}"

MODE_NAMES = ("base", "inplace")

# A module that runs, in rounds, what a host may translate; in the first run it gets translated.
FEW, MANY = 8, 520
LENGTHS = {"few": FEW, "many": MANY}
LONG_MODES = ("singles", "inplace")

# As module/probes.c has it: rounds, places and calls.
PROBE_HITS = 4 * 6 * 32

SUCCESS, INVALID, UNIMPLEMENTED = 0, 8, 12


@dataclass(frozen=True)
class Load:
    """Where a module's functions were."""

    name: str
    address: int
    pages: tuple[int, ...]


def _printed(console: power.Console, label: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^module (\S+) (\S+) (.*)$", console.of(label).text, re.MULTILINE)


def _loads(console: power.Console, label: str) -> list[Load]:
    found, place = [], {}
    for name, parameter, value in _printed(console, label):
        if name in (ONE, OTHER):
            place[parameter] = value
            if {"address", "pages"} <= place.keys():
                pages = tuple(int(page) for page in place["pages"].split(","))
                found.append(Load(name, int(place["address"]), pages))
                place = {}
    return found


@pytest.fixture(scope="module")
def console() -> power.Console:
    vms = [Vm(name, MODES[name], RUN) for name in MODE_NAMES]
    files = {f"/modules/{name}.ko": File(artifacts.power("tests/module", f"{name}.ko")) for name in MODULES}
    return power.in_host(power.one_after_another(vms), guest_files=files, how=How(timeout_s=300))


def test_modules_compute_the_same(console: power.Console) -> None:
    """A module is loaded only if each value was right."""
    places = {"address", "pages", "answers"}
    base, translated = (
        [line for line in _printed(console, label) if line[1] not in places] for label in MODE_NAMES
    )
    assert len([line for line in base if line[1] == "calls"]) == len(EXCHANGED) + 1
    assert base == translated


@pytest.mark.parametrize("label", MODE_NAMES)
def test_other_code_was_loaded_at_the_same_place(console: power.Console, label: str) -> None:
    """At the same address and in the same guest-physical page, in both orders."""
    loads = _loads(console, label)
    assert tuple(load.name for load in loads) == EXCHANGED
    followed = {
        (before.name, after.name)
        for i, before in enumerate(loads)
        for after in loads[i + 1 :]
        if before.address == after.address and before.pages == after.pages
    }
    assert {(ONE, OTHER), (OTHER, ONE)} <= followed, "the guest's allocator no longer does so"


def test_their_code_was_translated(console: power.Console) -> None:
    """After "renew", which registers no execute pages for modules, those that need some are counted."""
    exits = {label: console.statistics(label)["emulated_inst_exits"] for label in MODE_NAMES}
    assert exits["inplace"] < exits["base"] / 2
    assert console.statistics("inplace")["bt_out_of_range"] > 0
    assert console.statistics("inplace")["bt_undone"] > 1000


@pytest.fixture(scope="module")
def rounds() -> power.Console:
    """The same module for few rounds and for many, with fragments and without.

    Huge pages come first: they need entries of TLB1, as do the module's execute pages.
    """
    vms = [
        Vm(f"{mode}-{length}", MODES[mode], f"run=huge_pages,modules modules={ONE}:rounds={count}")
        for mode in LONG_MODES
        for length, count in LENGTHS.items()
    ]
    return power.in_host(
        power.one_after_another(vms),
        guest_files={f"/modules/{ONE}.ko": File(artifacts.power("tests/module", f"{ONE}.ko"))},
        how=How(timeout_s=300),
    )


def _exits_a_round(console: power.Console, mode: str) -> float:
    few, many = (console.statistics(f"{mode}-{length}")["emulated_inst_exits"] for length in LENGTHS)
    return (many - few) / (MANY - FEW)


def test_modules_have_fragments(rounds: power.Console) -> None:
    """No instruction of a module exits once it is translated; some kinds need fragments.

    If a huge page had replaced the fragments' entry, the host would have undone them.
    """
    assert rounds.statistics("inplace-many")["bt_out_of_range"] == 0
    assert _exits_a_round(rounds, "inplace") < 1


def test_negative_control_without_fragments_they_exit(rounds: power.Console) -> None:
    assert _exits_a_round(rounds, "singles") > 20


@pytest.mark.parametrize("label", MODE_NAMES)
def test_negative_control_old_code_is_seen(console: power.Console, label: str) -> None:
    refused = re.findall(r"^refused (\S+)$", console.of(label).text, re.MULTILINE)
    assert refused == [control[1:].partition(":")[0] for control in CONTROLS]


@pytest.mark.parametrize("label", MODE_NAMES)
def test_probes_are_hit_each_time(console: power.Console, label: str) -> None:
    hits = [(what, int(value)) for _, what, value in _printed(console, label) if what.endswith("hits")]
    assert sorted(hits) == [("expected_hits", PROBE_HITS)] * 2 + [("hits", PROBE_HITS)] * 2


def test_translation_can_be_disabled_and_enabled_again(console: power.Console) -> None:
    said = {label: dict(line[1:] for line in _printed(console, label))["answers"] for label in MODE_NAMES}
    answers = {label: [int(word) for word in text.split()] for label, text in said.items()}
    granted = [SUCCESS, SUCCESS, SUCCESS, INVALID, SUCCESS, SUCCESS, SUCCESS]
    assert answers == {"base": [UNIMPLEMENTED] * len(granted), "inplace": granted}
    # It has sites again.
    assert console.statistics("inplace")["bt_sites"] > 50


def test_text_is_as_it_was(console: power.Console) -> None:
    """Probes and labels are restored, and so are all replaced words."""
    sums = [re.findall(r"^text .*$", console.of(label).text, re.MULTILINE) for label in MODE_NAMES]
    assert len(sums[0]) == 1 and sums[0] == sums[1]
