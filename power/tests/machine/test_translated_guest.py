# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A translated Linux guest: it reads its own text unchanged, and several run at once.

test_differential.py tests single instructions and memory; this is a whole kernel with hundreds of sites.
"""

import re

import pytest

from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

LIMITED = How(timeout_s=240)
# Text is read when there are sites, which are made during the first processes.
RUN = "run=getppid,fork,textsum"
# Blocks so large that loads of the kernel's constants remain traced.
LARGE_BLOCKS = "kvm.bt_first_kb=4096 kvm.bt_faults_to_split=0"


def _sums(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(text|given) ([0-9a-f]{16} \d+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def console() -> power.Console:
    """One guest under plain KVM, then a translated one, and one whose loads are translated, too."""
    vms = [Vm(name, MODES[name], RUN) for name in ("base", "inplace")]
    cached = [Vm("cached", MODES["inplace"], RUN)]
    script = [
        *power.one_after_another(vms),
        "write /sys/module/kvm/parameters/bt_read_cache 1",
        *power.one_after_another(cached),
    ]
    return power.in_host(script, how=LIMITED)


def test_a_guest_reads_its_own_text_as_it_was(console: power.Console) -> None:
    base, translated = (_sums(console.of(name).text) for name in ("base", "inplace"))
    assert base["text"] == translated["text"]
    assert console.statistics("inplace")["bt_sites"] > 100
    # By loads that the host has traced: each of a word of text, or of a cache line.
    assert console.statistics("inplace")["bt_traced_loads"] > 1000


def test_negative_control_the_sum_sees_what_the_host_puts_there(console: power.Console) -> None:
    """In the execute pages."""
    base, translated = (_sums(console.of(name).text) for name in ("base", "inplace"))
    assert base["given"] != translated["given"]


def test_it_does_so_with_copies_of_what_it_reads(console: power.Console) -> None:
    base, cached = (_sums(console.of(name).text) for name in ("base", "cached"))
    assert base["text"] == cached["text"]
    assert console.statistics("cached")["bt_reads_made"] > 0


@pytest.mark.long("two boots; a setting that is off by default")
def test_loads_that_find_a_copy_are_not_traced() -> None:
    vms = power.one_after_another([Vm("boot", MODES["inplace"], "run=boot")])
    plain, cached = (
        power.in_host(vms, arguments=f"{LARGE_BLOCKS} kvm.bt_read_cache={threshold}", how=LIMITED)
        for threshold in (0, 16)
    )
    before, after = (console.statistics("boot") for console in (plain, cached))
    assert before["bt_reads_made"] == before["bt_read_sites"] == 0
    assert after["bt_reads_made"] > 100 and after["bt_read_sites"] > 50
    assert after["bt_traced_loads"] < 0.8 * before["bt_traced_loads"]


def test_two_translated_guests_at_once() -> None:
    """Each has its own sites; after them the host starts one more."""
    vms = [Vm(name, MODES["inplace"], RUN) for name in ("one", "other")]
    console = power.in_host(power.side_by_side(vms), how=LIMITED)
    sums = [_sums(console.of(vm.label).text)["text"] for vm in vms]
    assert sums[0] == sums[1]
    for vm in vms:
        assert console.statistics(vm.label)["bt_sites"] > 100
