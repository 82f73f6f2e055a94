# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Loading and unloading of payload and module: refusals, memory that is given back, and repetition."""

import re
from dataclasses import replace

import pytest

from machines import (
    ALIVE_FORKERS,
    GUEST,
    MEMORY,
    SPAWN,
    STOCK_FLUSHES,
    STOP_FORKERS,
    forkers,
    helper_file,
    insmod,
    payload_file,
    pool_file,
    refused,
    require_memory_back,
)
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import Tree
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

pytestmark = pytest.mark.machine

# With -icount a second is as much work on any host.
MACHINE = MACHINES["xen-strict"].with_icount()

# On one CPU: some process is always between fork and exit while a toggle waits or is interrupted.
FORKERS = 8
# The pool may still grow; pagetable-flushes checks that there are none in the end.
BOOSTED_FLUSHES = STOCK_FLUSHES // 20
SYSFS = f"/sys/kernel/{pagetable.NAME}"

SWEEP_S = 10
COLD_FAULTS = runner.DISK_BYTES >> 21  # coldmap reads one byte of every 2 MiB

# More than the noise of what is free.
KEPT_MIB = 2


def _step(name: str, command: str, expect: int | None = None) -> Step:
    return Step(name, command, timeout_s=300, expect=expect)


def _files() -> Tree:
    return {
        **pagetable.files(),
        **payload_file("wrong-build-id"),
        **payload_file("wrong-prologue"),
        **pool_file("unknown-symbol"),
        **pool_file("unknown-function"),
    }


FORKS = "$(sed -n 's/^processes //p' /proc/stat)"


def _under_forks(step: Step) -> Step:
    """Return the step, saying how many processes were forked meanwhile."""
    command = f"before={FORKS}; {step.command} || exit 1; echo forked $(({FORKS} - before))"
    return _step(f"{step.name} under forks", command, expect=0)


def _switched_under_forks(name: str, value: int) -> Step:
    """Return a step that ends with the pool switched to the value.

    One switch may take less time than one fork: it is repeated, back and forth, until more
    processes were forked than the step itself has.
    """
    switch = f"echo {1 - value} >{SYSFS}/enabled && echo {value} >{SYSFS}/enabled"
    enough = f"[ $(({FORKS} - $before)) -gt {4 * FORKERS} ]"
    command = f"until {switch} || exit 1; {enough}; do :; done"
    return _under_forks(Step(name, command))


LOADS = tuple(map(_under_forks, pagetable.load_steps()))
SWITCHES = (_switched_under_forks("disable", 0), _switched_under_forks("enable", 1))
UNLOADS = tuple(map(_under_forks, pagetable.unload_steps()))


@pytest.fixture(scope="module")
def strict() -> Transcript:
    """Every refusal, two rounds of load, use, disable, enable, unload, and a pool that is nearly empty.

    Then all is loaded, disabled, enabled and unloaded under processes that fork without pause.
    """
    load, unload = pagetable.load_steps(), pagetable.unload_steps()

    def renamed(steps: list[Step], suffix: str) -> list[Step]:
        return [replace(step, name=f"{step.name} {suffix}") for step in steps]

    return runner.run(
        MACHINE,
        [
            insmod(name="no payload", expect=None),
            _step("wrong build id", f"xen-livepatch load {GUEST}/wrong-build-id.livepatch"),
            _step("wrong prologue", f"xen-livepatch load {GUEST}/wrong-prologue.livepatch"),
            _step("nothing was loaded", "xen-livepatch list"),
            _step("stock", SPAWN),
            _step("memory before", MEMORY),
            load[0],
            insmod("unknown-symbol", name="unknown symbol", expect=None),
            insmod("unknown-function", name="unknown function", expect=None),
            Step("nothing is left marked", unload[-1].command),
            *load,
            _step("boosted", SPAWN),
            _step("pool", pagetable.pool_step().command),
            _step("revert refused", f"xen-livepatch revert {pagetable.NAME}"),
            _step("bad input", f"echo maybe >{SYSFS}/enabled"),
            _step("still enabled", f"cat {SYSFS}/enabled"),
            _step("disable", f"echo 0 >{SYSFS}/enabled && echo 0 >{SYSFS}/enabled", expect=0),
            _step("pool disabled", pagetable.pool_step().command),
            _step("disabled", SPAWN),
            _step("enable", f"echo 1 >{SYSFS}/enabled && echo 1 >{SYSFS}/enabled", expect=0),
            _step("enabled again", SPAWN),
            *unload,
            _step("memory after", MEMORY),
            _step("memory kept", f"dd if=/dev/zero of=/tmp/kept bs=1M count={KEPT_MIB}; {MEMORY}"),
            _step("keep none", "rm /tmp/kept", expect=0),
            _step("stock again", SPAWN),
            *renamed(load, "again"),
            _step("boosted again", SPAWN),
            *renamed(unload, "again"),
            *renamed(load[:1], "for a small pool"),
            insmod(parameters="prefill=1,1,1,1,1 max_tables=5", name="small pool"),
            _step("boosted by a small pool", SPAWN, expect=0),
            _step("size of a small pool", pagetable.pool_step().command),
            *renamed(unload, "of a small pool"),
            _step("fork", forkers("fork-exec", FORKERS), expect=0),
            *LOADS,
            _step("storm", f"sleep 1; {ALIVE_FORKERS}; grep . {SYSFS}/*/hits", expect=0),
            *SWITCHES,
            _step("enabled under forks", "sleep 1", expect=0),
            *UNLOADS,
            _step("still forking", ALIVE_FORKERS, expect=0),
            _step("stop", STOP_FORKERS, expect=0),
        ],
        files=_files(),
    )


def test_module_refuses_without_payload(strict: Transcript) -> None:
    assert refused(strict["no payload"].output, "no hypervisor half")


def test_module_refuses_an_unknown_kernel(strict: Transcript) -> None:
    """Once a symbol is missing, once a function that it hooks; the pages that it had marked are released."""
    assert refused(strict["unknown symbol"].output, "no symbol trapless_no_such_symbol")
    assert refused(strict["unknown function"].output, "no symbol trapless_no_such_function")
    assert strict["nothing is left marked"].rc == 0


def test_payload_refused_for_another_build(strict: Transcript) -> None:
    assert strict["wrong build id"].rc != 0
    # Xen 4.20 says it in other words than 4.17.
    assert re.search("build-id (failed|mismatch)", strict.console)


def test_payload_refused_on_another_prologue(strict: Transcript) -> None:
    assert strict["wrong prologue"].rc != 0
    assert re.search(
        "livepatch: .*expectation.*(mismatch|failed)|check.*expect", strict.console, re.IGNORECASE
    )


def test_refused_payloads_leave_nothing_applied(strict: Transcript) -> None:
    assert "APPLIED" not in strict["nothing was loaded"].output


def test_stock_flushes_and_boosted_does_not(strict: Transcript) -> None:
    """Stock is the negative control: same command, same witness."""
    assert strict.counts("stock").flushes >= STOCK_FLUSHES
    assert strict.counts("boosted").flushes <= BOOSTED_FLUSHES
    assert strict.counts("disabled").flushes >= STOCK_FLUSHES
    assert strict.counts("enabled again").flushes <= BOOSTED_FLUSHES
    assert strict.counts("stock again").flushes >= STOCK_FLUSHES
    assert strict.counts("boosted again").flushes <= BOOSTED_FLUSHES


def test_every_level_is_served(strict: Transcript) -> None:
    for level, counters in pagetable.pool_sizes(strict["pool"]).items():
        assert counters["hits"] >= 40, level
        assert counters["misses"] <= 4, level


def test_revert_refused_while_the_pool_holds_pages(strict: Transcript) -> None:
    assert strict["revert refused"].rc != 0
    assert "not reverting" in strict.console


def test_bad_input_changes_nothing(strict: Transcript) -> None:
    assert strict["bad input"].rc != 0
    assert strict["still enabled"].output.strip() == "1"


def test_disabling_gives_every_page_back(strict: Transcript) -> None:
    for level, counters in pagetable.pool_sizes(strict["pool disabled"]).items():
        assert counters["cached"] == counters["in_use"] == 0, level


def test_unloading_gives_the_memory_back(strict: Transcript) -> None:
    require_memory_back(strict)


def test_negative_control_memory_that_is_kept(strict: Transcript) -> None:
    with pytest.raises(AssertionError):
        require_memory_back(strict, after="memory kept")


def test_empty_pool_falls_back_to_the_kernel(strict: Transcript) -> None:
    sizes = pagetable.pool_sizes(strict["size of a small pool"])
    assert sum(counters["misses"] for counters in sizes.values()) > 0
    assert sum(counters["cached"] + counters["in_use"] for counters in sizes.values()) <= 5
    assert strict.counts("boosted by a small pool").flushes > 0


def test_unload_under_forks(strict: Transcript) -> None:
    for name in ("storm", "still forking"):
        assert f"alive {FORKERS}\n" in strict[name].output
    hits = re.findall(r"/(\w+)/hits:(\d+)$", strict["storm"].output, re.MULTILINE)
    assert {level for level, count in hits if int(count) >= FORKERS} == set(pagetable.LEVELS)
    for step in (*LOADS, *SWITCHES, *UNLOADS):
        found = re.search(r"^forked (\d+)$", strict[step.name].output, re.MULTILINE)
        assert found, step.name
        assert int(found[1]) > FORKERS, step.name  # more than its own few


def test_no_kernel_complains(strict: Transcript) -> None:
    assert strict.kernel_warnings() == []


def test_tables_freed_without_our_hooks_are_found() -> None:
    """Page faults that wait for a disk free page tables in code that is not hooked."""
    tables = f"cat {SYSFS}/pte/in_use"
    found = f"[ $({tables}) -le $(($(cat /tmp/before) + {COLD_FAULTS // 8})) ]"
    # No -icount here, because of the disk: the sweep may come late.
    swept = f"n=0; until {found} || [ $((n += 1)) -gt {10 * SWEEP_S} ]; do sleep 1; done"
    transcript = runner.run(
        MACHINES["xen-strict"].with_disk(),
        [
            *pagetable.load_steps(),
            _step("before", f"sleep 1; {tables} | tee /tmp/before", expect=0),
            _step("fault", f"coldmap /dev/sda && sleep 1 && {tables}", expect=0),
            _step("after", f"{swept}; {tables}", expect=0),
            *pagetable.unload_steps(),
        ],
        files=pagetable.files(),
        modules=("ahci", "sd_mod"),
    )
    before, lost, after = (int(transcript[step].output) for step in ("before", "fault", "after"))
    assert lost >= before + COLD_FAULTS // 2, "there is nothing to find"
    assert after <= before + COLD_FAULTS // 8
    assert transcript.kernel_warnings() == []


def test_refused_on_bare_metal() -> None:
    transcript = runner.run(MACHINES["bare"], [insmod(name="not Xen", expect=None)], files=pool_file())
    assert refused(transcript["not Xen"].output, "not a Xen PV guest")


def test_refused_in_a_relaxed_dom0() -> None:
    """Its IOMMU does not follow page types: nothing to save, as the hypercall also reports."""
    load = pagetable.load_steps()[0]
    case = "/sys/module/hypercall_test/parameters/run"
    transcript = runner.run(
        MACHINES["xen-relaxed"],
        [
            load,
            insmod(name="relaxed", expect=None),
            insmod("hypercall_test"),
            _step("mark", f"echo mark >{case} || {{ dmesg | grep hypercall_test; false; }}"),
        ],
        files={**pagetable.files(), **helper_file("hypercall_test")},
    )
    assert refused(transcript["relaxed"].output, "does not follow page types")
    assert transcript["mark"].rc != 0
    assert "rc: -95" in transcript["mark"].output  # EOPNOTSUPP


def test_unmarked_in_a_relaxed_dom0() -> None:
    """There the pool is a cache of tables that marks none: the payload can be taken out under it."""
    steps = [
        pagetable.load_steps()[0],
        insmod(parameters="unmarked=1", name="unmarked"),
        _step("forkers", forkers("fork-exit", 4), expect=0),
        _step(
            "off and on under load", f"sleep 8; echo 0 >{SYSFS}/enabled && echo 1 >{SYSFS}/enabled", expect=0
        ),
        _step("alive", f"sleep 3; {ALIVE_FORKERS}", expect=0),
        pagetable.pool_step(),
        *pagetable.unload_steps((pagetable.POOL_PART, pagetable.PAYLOAD_PART)),
        _step("alive after all", ALIVE_FORKERS, expect=0),
        _step("stop", STOP_FORKERS, expect=0),
    ]
    transcript = runner.run(MACHINES["xen-relaxed-smp"], steps, files=pagetable.files())
    sizes = pagetable.pool_sizes(transcript["pool"])
    for level in pagetable.LEVELS:
        assert sizes[level]["hits"] > 100, level
    for step in ("alive", "alive after all"):
        assert transcript[step].output.strip() == "alive 4"
    assert transcript.kernel_warnings() == []
