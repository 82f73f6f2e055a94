# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest's modules on Linux 6.12 as dom0's kernel, on the host's stock Xen.

The witnesses are the kernel's count of page tables and programs that compare memory; neither asks a module.
"""

import re

import pytest

import pvmmu as checks
from machines import GUEST, STOP_FORKERS
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.parts import (
    LEVELS,
    NAME,
    PAYLOAD_PART,
    POOL_PART,
    PVMMU,
    PVMMU_PART,
    PVMMU_SWITCHES,
    SYSFS,
)
from trapless_lab.releases import Linux

pytestmark = pytest.mark.machine

KERNELS = ("6.12-deb13", pytest.param("6.12-deb12", marks=pytest.mark.long("its source is 6.12-deb13's")))

# While it is 0, ftrace accepts hooks and puts none in.
_FTRACE = "/proc/sys/kernel/ftrace_enabled"
FTRACE_OFF, FTRACE_ON = f"echo 0 >{_FTRACE}", f"echo 1 >{_FTRACE}"
SAID = "dmesg | grep -c 'kernel.ftrace_enabled is 0'"

# Each process has a table of the third level. The kernel's count is kept in batches for each CPU.
PROCESSES = 200
NOISE_KIB = 128
MISTAKE = "no-pud-count"
# Has no hook refused, and lets live ones be turned off.
HOOKS_OFF = "hooks-off"
UNFLUSHED = "no-flush"
COUNT = f"spawn fork-exec -n {PROCESSES} >/dev/null && sleep 1 && grep ^PageTables: /proc/meminfo"


@pytest.fixture(scope="module", params=KERNELS)
def pool(request: pytest.FixtureRequest) -> Transcript:
    """The pool serves; then the same by a mutant."""
    linux: Linux = request.param
    mutant, hooks_off = (f"{GUEST}/{name}.ko" for name in (MISTAKE, HOOKS_OFF))
    return runner.run(
        MACHINES["xen-strict"].with_linux(linux),
        [
            *PAYLOAD_PART.load,
            Step("stock", COUNT),
            Step("ftrace off", FTRACE_OFF),
            Step("refused", f"insmod {POOL_PART.guest_path}", expect=None),
            Step("said", SAID),
            Step("ftrace on", FTRACE_ON),
            *POOL_PART.load,
            Step("off while it serves", FTRACE_OFF, expect=None),
            Step("left out", f"cat {SYSFS}/left_out"),
            Step("boosted", COUNT),
            Step("hits", f"cd {SYSFS} && cat {' '.join(f'{level}/hits' for level in LEVELS)}"),
            *POOL_PART.unload,
            Step("stock again", COUNT),
            Step("load the mutant", f"insmod {mutant}"),
            Step("mutant", COUNT),
            Step("unload the mutant", f"rmmod {NAME}"),
            Step("ftrace off once more", FTRACE_OFF),
            Step("taken by a mutant", f"insmod {hooks_off}", expect=None),
            Step("ftrace on once more", FTRACE_ON),
            Step("off while a mutant serves", FTRACE_OFF, expect=None),
        ],
        files={
            PAYLOAD_PART.guest_path: File(artifacts.payload("pagetable", NAME)),
            POOL_PART.guest_path: File(artifacts.module("pagetable", "pool", NAME, linux)),
            mutant: File(artifacts.mutant("pagetable", f"pool-{MISTAKE}", f"{NAME}.ko", linux)),
            hooks_off: File(artifacts.mutant("pagetable", f"pool-{HOOKS_OFF}", f"{NAME}.ko", linux)),
        },
    )


def _kib(transcript: Transcript, step: str) -> int:
    (found,) = re.findall(r"PageTables: +(\d+) kB", transcript[step].output)
    return int(found)


def test_the_pool_serves_every_level(pool: Transcript) -> None:
    assert pool["left out"].output.split() == []
    assert all(int(hits) >= PROCESSES for hits in pool["hits"].output.split()), pool["hits"].output
    assert pool.kernel_warnings() == []


def _require_hooks_live(module: Transcript) -> None:
    """Require that hooks were refused that would not have been live, and that live ones stayed."""
    assert module["refused"].rc != 0 and int(module["said"].output) > 0
    assert module["off while it serves"].rc != 0


def test_the_pool_serves_only_with_live_hooks(pool: Transcript) -> None:
    _require_hooks_live(pool)


def test_hooks_that_are_off_are_seen(pool: Transcript) -> None:
    """The control: a mutant loads while hooks are off, and the kernel turns its live hooks off."""
    assert pool["taken by a mutant"].rc == 0
    assert pool["off while a mutant serves"].rc == 0


def test_the_kernel_counts_tables_as_on_stock(pool: Transcript) -> None:
    stock = _kib(pool, "stock")
    assert abs(_kib(pool, "boosted") - stock) <= NOISE_KIB
    assert abs(_kib(pool, "stock again") - stock) <= NOISE_KIB


def test_the_count_sees_a_level_that_is_not_counted(pool: Transcript) -> None:
    """The control; the kernel shows a count below 0 as 0."""
    assert _kib(pool, "mutant") < _kib(pool, "stock") - NOISE_KIB


@pytest.fixture(scope="module", params=KERNELS)
def pvmmu(request: pytest.FixtureRequest) -> Transcript:
    """The programs that compare memory, with every part on, on two CPUs; then one by a mutant."""
    linux: Linux = request.param
    mutant = f"{GUEST}/{UNFLUSHED}.ko"
    return runner.run(
        MACHINES["xen-relaxed-smp"].with_linux(linux),
        [
            checks.SWAP,
            checks.step("ftrace off", FTRACE_OFF),
            checks.step("refused", f"insmod {PVMMU_PART.guest_path}", None),
            checks.step("said", SAID),
            checks.step("ftrace on", FTRACE_ON),
            checks.load(),
            checks.step("off while it serves", FTRACE_OFF, None),
            checks.step("left out", f"cat {PVMMU_SWITCHES}/left_out"),
            checks.step("switches", f"cd {PVMMU_SWITCHES} && cat {' '.join(checks.GUEST_SWITCHES)}"),
            *checks.oracles("on", (*checks.PROGRAMS, "forks torn 100")),
            checks.unload(),
            checks.step("load the mutant", f"insmod {mutant}"),
            checks.step("mutant", "tracked flush", None),
        ],
        files={
            PVMMU_PART.guest_path: File(artifacts.module("pagetable", "pvmmu", PVMMU, linux)),
            mutant: File(artifacts.mutant("pagetable", f"pvmmu-{UNFLUSHED}", f"{PVMMU}.ko", linux)),
        },
        modules=checks.MODULES,
    )


def test_every_part_of_pvmmu_is_on(pvmmu: Transcript) -> None:
    assert pvmmu["left out"].output.split() == []
    assert pvmmu["switches"].output.split() == ["1"] * len(checks.GUEST_SWITCHES)


def test_pvmmu_loads_only_with_live_hooks(pvmmu: Transcript) -> None:
    _require_hooks_live(pvmmu)


def test_memory_is_as_under_the_stock_kernel(pvmmu: Transcript) -> None:
    """Each step has failed if its program found a difference."""
    assert pvmmu.kernel_warnings() == []


def test_a_missing_flush_is_seen(pvmmu: Transcript) -> None:
    """The control."""
    assert pvmmu["mutant"].rc != 0 and "does not hold" in pvmmu["mutant"].output


@pytest.mark.long("a second boot for pvmmu; make check throws the switches on 6.1")
@pytest.mark.parametrize("linux", ["6.12-deb13", "6.12-deb12"])
def test_switches_are_thrown_under_load(linux: Linux) -> None:
    """One CPU, as in test_pvmmu.storm: each hook is set and removed again and again, under forks at last."""
    transcript = runner.run(
        MACHINES["xen-relaxed"].with_linux(linux),
        [
            checks.SWAP,
            checks.load(),
            checks.toggling(("cow --seed 6", "cowthreads 20", "pinned", "filemap race 40", "tracked swap")),
            checks.step("storm", checks.STORM),
            checks.unload("rmmod under forks"),
            checks.load("insmod under forks"),
            checks.step("off under forks", checks.turn(checks.GUEST_SWITCHES, False)),
            checks.step("on under forks", checks.turn(checks.GUEST_SWITCHES, True)),
            checks.unload("last rmmod"),
            checks.step("stop", STOP_FORKERS),
        ],
        files={PVMMU_PART.guest_path: File(artifacts.module("pagetable", "pvmmu", PVMMU, linux))},
        modules=checks.MODULES,
    )
    assert transcript.kernel_warnings() == []
