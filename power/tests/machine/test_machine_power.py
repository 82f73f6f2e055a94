# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Power machines boot, run their scripts, and give the same results each time.

The experiment power-exits runs every workload in every mode; these tests check what its figures depend on.
"""

import pytest

from trapless_lab.errors import LabError
from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

SOME = "run=getppid,syscall,fork,pipe,ctx_2p0k"
BASE = MODES["base"]
LIMITED = How(timeout_s=120)


def test_bare_metal_is_the_same_each_time() -> None:
    first, second = (power.bare(SOME, how=LIMITED).text for _ in range(2))
    assert first == second
    assert power.bare(SOME.replace("pipe", "fstat"), how=LIMITED).text != first


def test_a_guest_is_the_same_each_time() -> None:
    script = power.one_after_another([Vm("guest", BASE, SOME)])
    first, second = (power.in_host(script, how=LIMITED) for _ in range(2))
    assert first.text == second.text
    assert first.statistics("guest")["emulated_inst_exits"] > 10_000


def test_two_guests_at_once() -> None:
    vms = [Vm(name, BASE, "run=getppid,fork") for name in ("one", "other")]
    console = power.in_host(power.side_by_side(vms), how=LIMITED)
    for vm in vms:
        assert set(console.of(vm.label).results) == {"kernel_boot", "getppid", "fork"}


def test_paravirt_turns_itself_on() -> None:
    """Patches 0002 to 0004 are for this: without them the guest is unchanged, or says why patching failed."""
    vms = [Vm(name, MODES[name], "run=getppid ignore_loglevel") for name in ("base", "pv")]
    console = power.in_host(power.one_after_another(vms), how=LIMITED)
    patched = "KVM: Live patching for a fast VM worked"
    assert patched in console.of("pv").text
    assert patched not in console.of("base").text
    assert "No more space" not in console.text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("run=nothing-of-this-name", "there is no workload"),
        ("rdinit=/no/init", "Kernel panic"),
    ],
)
def test_a_failure_is_an_error(arguments: str, why: str) -> None:
    with pytest.raises(LabError, match=why):
        power.bare(arguments, how=LIMITED)
    with pytest.raises(LabError, match=f"guest bad(.|\n)*{why}"):
        power.in_host(power.one_after_another([Vm("bad", BASE, arguments)]), how=LIMITED)


def test_a_program_that_has_ended_cannot_be_killed() -> None:
    with pytest.raises(LabError, match=r"failed: .*: kill"):
        power.in_host(power.killed([Vm("short", BASE, "run=getppid")], 3000), how=LIMITED)


def test_a_machine_that_does_not_end_is_stopped() -> None:
    with pytest.raises(LabError, match="bare metal: timed out after 0 s"):
        power.bare(SOME, how=How(timeout_s=0))
