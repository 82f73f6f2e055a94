# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A Linux guest that is translated: what it reads of itself, and that it is one of several.

Single instructions and memory are for test_differential.py; here is a whole kernel with hundreds of sites.
"""

import re

import pytest

from trapless_lab import power
from trapless_lab.power import MODES, How, Vm

pytestmark = pytest.mark.machine

LIMITED = How(timeout_s=240)
# Text is read while sites are there: they come with the first processes.
RUN = "run=getppid,fork,textsum"


def _sums(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(text|given) ([0-9a-f]{16} \d+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def console() -> power.Console:
    """One guest under base KVM, then one that is translated."""
    vms = [Vm(name, MODES[name], RUN) for name in ("base", "inplace")]
    return power.in_host(power.one_after_another(vms), how=LIMITED)


def test_a_guest_reads_its_own_text_as_it_was(console: power.Console) -> None:
    base, translated = (_sums(console.of(name).text) for name in ("base", "inplace"))
    assert base["text"] == translated["text"]
    assert console.statistics("inplace")["bt_sites"] > 100
    # By loads that the host has seen: a word of text each, or a line.
    assert console.statistics("inplace")["bt_traced_loads"] > 1000


def test_negative_control_the_sum_sees_what_the_host_puts_there(console: power.Console) -> None:
    """In the pages that the guest gave it."""
    base, translated = (_sums(console.of(name).text) for name in ("base", "inplace"))
    assert base["given"] != translated["given"]


def test_two_translated_guests_at_once() -> None:
    """Each with its own sites; after them the host starts one more."""
    vms = [Vm(name, MODES["inplace"], RUN) for name in ("one", "other")]
    console = power.in_host(power.side_by_side(vms), how=LIMITED)
    sums = [_sums(console.of(vm.label).text)["text"] for vm in vms]
    assert sums[0] == sums[1]
    for vm in vms:
        assert console.statistics(vm.label)["bt_sites"] > 100
