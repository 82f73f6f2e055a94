# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks of the guest module trapless_pvmmu in a machine: programs that know what memory must hold.

Invariant: no program asks the module; each compares memory, or what the kernel reports of it, with what it
did itself, so it passes on the stock kernel and must pass on the boosted one.
"""

from collections.abc import Sequence

from machines import forkers, insmod
from trapless_lab.machines.script import Step
from trapless_lab.pagetable.parts import PVMMU, PVMMU_SWITCHES

GUEST_SWITCHES = (
    *("walk", "pin", "kernel_half", "exit_mmap", "context_switch", "set_pte", "fault_around"),
    *("fork", "fork_copy", "fork_hints", "fork_text", "fork_entries", "clear_flush"),
    *("reuse_around", "mremap", "zap", "thunks"),
)
XEN_SWITCHES = ("xen_zero_runs", "xen_l1_update", "xen_table_refs", "xen_ranges")

# Pages that are swapped go to compressed memory; the machine has no disk.
MODULES = ("zram",)
SWAP = Step("swap", "echo 128M >/sys/block/zram0/disksize && mkswap /dev/zram0 && swapon /dev/zram0")

PROGRAMS = (
    "cow",
    "cow --seed 2 --pages 128",
    "cowthreads 20",
    "pinned",
    "filemap read",
    "filemap race 40",
    "forks tables",
    "forks race 20",
    "forks text 60",
    "forks torn 60",
    "forks again",
    "forks freed",
    "moves pages",
    "moves freed",
    "segments 100",
    "samepage",
    *(f"tracked {case}" for case in ("soft-dirty", "merged", "uffd", "dirty", "free", "swap", "flush")),
)

FORKERS = 4
STORM = f"{forkers('fork-exec', FORKERS)}; sleep 1"

_TIMEOUT_S = 300


def step(name: str, command: str, expect: int | None = 0) -> Step:
    """Return a step with time for a machine that is kept busy by others."""
    return Step(name, command, timeout_s=_TIMEOUT_S, expect=expect)


def load(name: str = "insmod") -> Step:
    """Return the step that loads the module."""
    return step(name, insmod(PVMMU).command)


def unload(name: str = "rmmod") -> Step:
    """Return the step that unloads it."""
    return step(name, f"rmmod {PVMMU}")


def oracles(when: str, programs: Sequence[str] = PROGRAMS) -> list[Step]:
    """Return a step for each program."""
    return [step(f"{program}, {when}", program) for program in programs]


def turn(switches: Sequence[str], on: bool) -> str:
    """Return the command that turns switches on or off."""
    names = " ".join(switches)
    return f"for s in {names}; do echo {on:d} >{PVMMU_SWITCHES}/$s || exit 1; done"


def toggling(programs: Sequence[str], name: str = "toggling") -> Step:
    """Return a step that runs programs one after another while switches are toggled at random.

    It prints how often they were toggled, and fails if a program fails.
    """
    names = " ".join(GUEST_SWITCHES)
    throw = f"for s in {names}; do echo $((RANDOM / 7 % 2)) >{PVMMU_SWITCHES}/$s; echo $s; done"
    background = f"while [ -e /tmp/toggling ]; do {throw}; done >/tmp/thrown 2>&1 &"
    ended = "rm -f /tmp/toggling; wait; wc -l </tmp/thrown; grep -i error /tmp/thrown"
    run = " && ".join(programs)
    return step(name, f"touch /tmp/toggling; {background} {run}; rc=$?; {ended}; exit $rc")
