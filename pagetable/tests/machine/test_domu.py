# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A PV domU on a boosted Xen: it sees no difference, is saved and restored, and leaves nothing behind.

The guest's modules are loaded in it: a domain pins all its tables before it is saved, and unpins them when it
resumes. The pool, which marks nothing in a domain without devices, is empty meanwhile. ``pattern``, a program
in the domU, checks that each page holds what it must; Xen's own list and free memory show what is left of a
domain. Xen refuses live migration: a PV domain needs shadow paging for it, which Debian's Xen does not have.
"""

import re

import pytest

from machines import GUEST, helper_file, payload_file
from trapless_lab.machines import domu, runner
from trapless_lab.machines.domu import DomU
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.parts import NAME

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("a domU beside the pool, saved three times; make check has one with the pool in it"),
]

IN_DOMU = (pagetable.UNMARKED_POOL_PART, pagetable.PVMMU_PART)
# Small, as all of it is saved three times.
DOMU = DomU(
    programs=("pattern", "spawn"),
    memory_mib=128,
    vcpus=2,
    files={**helper_file("hypercall_test"), **pagetable.files(IN_DOMU)},
)
PATTERN_MIB = 8
PATTERN_PAGES = PATTERN_MIB << 8
CORRUPTED = 7

_LOAD = f"xen-livepatch load {GUEST}/{NAME}.livepatch"
_UNLOAD = f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"

# Xen's information for a domU about the hypervisor and the CPU.
_SEEN = (
    "cd /sys/hypervisor && grep -r . type guest_type version compilation properties &&"
    " grep -E 'flags|bugs|model' /proc/cpuinfo"
)
_VERSION_CALL = (
    f"insmod {GUEST}/hypercall_test.ko; echo version >/sys/module/hypercall_test/parameters/run;"
    " dmesg | tail -n1; rmmod hypercall_test"
)
_STORM = (
    f"pattern run {PATTERN_MIB} >/tmp/pattern 2>&1 & echo $! >/tmp/pattern.pid;"
    " spawn fork-sh -n 1000000 >/dev/null 2>&1 &"
)
# Both must still run: a storm that ended early would test nothing.
_CHECK = (
    "n=$(wc -l </tmp/pattern); kill -USR1 $(cat /tmp/pattern.pid) && pidof spawn >/dev/null || exit 1;"
    " until [ $(wc -l </tmp/pattern) -gt $n ]; do sleep 0.1; done; tail -n1 /tmp/pattern"
)
_SAVE = f"xl save {DOMU.name} /tmp/save >/tmp/log 2>&1"
_RESTORE = "xl restore /tmp/save >/tmp/log 2>&1 && rm /tmp/save"
_SHOW = "{ cat /tmp/log; false; }"
_TOGGLE = (
    f"({_SAVE} && {_RESTORE}) & moving=$!; while kill -0 $moving 2>/dev/null; do"
    f" {_UNLOAD} && {_LOAD} || exit 1; done; wait $moving"
)
_MIGRATE = f"xl migrate -s '' {DOMU.name} 'xl migrate-receive' 2>&1"
_LEFT = "xl list; xl info | grep free_memory"


def _check(name: str) -> Step:
    return DOMU.step(name, _CHECK, timeout_s=300)


def _found(transcript: Transcript, check: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)", transcript[check].output)}


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    """One domU from start to end; the storm of forks runs in it from "storm" on."""
    return runner.run(
        MACHINES["xen-strict"],
        [
            domu.toolstack(),
            Step("left before", _LEFT),
            DOMU.create(),
            DOMU.step("says", "printf 'one\\n\\ntwo'; exit 3", expect=3),
            DOMU.step("seen stock", _SEEN),
            DOMU.step("hypercall stock", _VERSION_CALL),
            Step("migrate stock", _MIGRATE, expect=None),
            Step("load", _LOAD),
            DOMU.step("seen boosted", _SEEN),
            DOMU.step("hypercall", _VERSION_CALL),
            *map(DOMU.inside, pagetable.load_steps(IN_DOMU)),
            DOMU.step("storm", _STORM),
            Step("migrate", _MIGRATE, timeout_s=300, expect=None),
            _check("check at home"),
            Step("save and restore", f"{_SAVE} && {_RESTORE} || {_SHOW}", timeout_s=300),
            _check("check restored"),
            Step("toggle", f"{_TOGGLE} || {_SHOW}", timeout_s=300),
            _check("check toggled"),
            Step(
                "corrupt",
                f"{_SAVE} && pattern corrupt /tmp/save {CORRUPTED} && {_RESTORE} || {_SHOW}",
                timeout_s=300,
            ),
            _check("check corrupted"),
            DOMU.step("pool", pagetable.pool_step().command),
            *map(DOMU.inside, pagetable.unload_steps(IN_DOMU)),
            # xenconsoled has a page of the domain mapped, so Xen must keep the domain.
            Step("destroy and hold", f"killall -STOP xenconsoled; xl destroy {DOMU.name}; sleep 1; {_LEFT}"),
            Step("left after", f"killall -CONT xenconsoled; {DOMU.gone()}; sleep 1; {_LEFT}"),
            domu.console(),
            Step("unload", _UNLOAD),
        ],
        files={**domu.tree(DOMU), **payload_file()},
        modules=domu.MODULES,
    )


def test_a_step_in_a_domu_is_a_step(transcript: Transcript) -> None:
    assert transcript["says"].raw == b"one\n\ntwo"


def test_the_domu_sees_no_difference(transcript: Transcript) -> None:
    assert "version/minor:17" in transcript["seen stock"].output
    assert transcript["seen boosted"].output == transcript["seen stock"].output


def test_the_domu_is_not_served(transcript: Transcript) -> None:
    """It has no devices, so there is nothing to save; test_domu_pool.py has a domU with a device."""
    assert "rc: -38, expected 0" in transcript["hypercall stock"].output  # ENOSYS
    assert "features: 0, expected 1" in transcript["hypercall"].output


@pytest.mark.parametrize("step", ["migrate stock", "migrate"])
def test_live_migration_is_refused_by_xen(transcript: Transcript, step: str) -> None:
    assert transcript[step].rc != 0
    assert "Failed to enable logdirty: 95," in transcript[step].output  # EOPNOTSUPP


@pytest.mark.parametrize("check", ["check at home", "check restored", "check toggled"])
def test_memory_is_what_was_written(transcript: Transcript, check: str) -> None:
    found = _found(transcript, check)
    assert (found["pages"], found["bad"], found["wrong"]) == (PATTERN_PAGES, 0, 0)


def test_the_pool_serves_after_it_was_restored(transcript: Transcript) -> None:
    sizes = pagetable.pool_sizes(transcript["pool"])
    for level in pagetable.LEVELS:
        assert sizes[level]["hits"] > 100 and sizes[level]["in_use"] + sizes[level]["cached"] > 0, level


def test_a_changed_byte_is_found(transcript: Transcript) -> None:
    """The negative control of the memory's check: one byte of one page of the saved domain."""
    assert "corrupted=" in transcript["corrupt"].output
    found = _found(transcript, "check corrupted")
    # found["wrong"] counts children, which may or may not have read that page.
    assert (found["bad"], found["first"]) == (1, CORRUPTED)


def test_the_domu_forked_all_the_time(transcript: Transcript) -> None:
    checks = ("check at home", "check restored", "check toggled", "check corrupted")
    forks = [_found(transcript, check)["forks"] for check in checks]
    assert forks == sorted(set(forks))


def test_the_payload_came_and_went_meanwhile(transcript: Transcript) -> None:
    assert transcript["toggle"].output.count(f"Applying {NAME}... completed") >= 2


def test_nothing_is_left(transcript: Transcript) -> None:
    """The step before is the control: a domain of which one page is held stays in the list."""
    assert "(null)" in transcript["destroy and hold"].output
    assert "(null)" not in transcript["left after"].output
    assert DOMU.name not in transcript["left after"].output
    free_before, free_after = (
        re.findall(r"free_memory\s*: (\d+)", transcript[step].output)
        for step in ("left before", "left after")
    )
    assert free_before == free_after


def test_no_kernel_complains(transcript: Transcript) -> None:
    """Debian's Xen does not log wrong tables: test_tables_differential.py finds those."""
    assert transcript.kernel_warnings() == []
    assert domu.kernel_warnings(transcript) == []
