# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The page-table accelerator as steps and guest files, for every experiment and test that boots it.

Invariant: loading ends with both halves in force for every task, unloading with both gone; a step that
cannot get there fails.
"""

from . import artifacts
from .initramfs import File
from .script import Step, StepResult

NAME = "trapless_pagetable"
LEVELS = ("pte", "pmd", "pud", "pgd", "user_pgd")

# PGD_ALLOCATION_ORDER is 1 in Debian's kernel, for the sake of PTI.
PAGES_PER_TABLE = {"pgd": 2}

LOAD_MODULE = "load pagetable module"

_PAYLOAD = f"/lib/trapless/{NAME}.livepatch"
_MODULE = f"/lib/trapless/{NAME}.ko"
_LIVEPATCH = f"/sys/kernel/livepatch/{NAME}"
_SYSFS = f"/sys/kernel/{NAME}"


def files() -> dict[str, File]:
    """Return the guest files that the load steps need."""
    return {
        _PAYLOAD: File(artifacts.payload("pagetable", NAME)),
        _MODULE: File(artifacts.module("pagetable", NAME)),
    }


def load_steps() -> list[Step]:
    """Return the steps that bring up the hypervisor half, then the guest half."""
    return [
        Step("load pagetable payload", f"xen-livepatch load {_PAYLOAD}"),
        Step(LOAD_MODULE, f"insmod {_MODULE}"),
        Step(
            "wait for the transition",
            f"until [ $(cat {_LIVEPATCH}/transition) = 0 ]; do sleep 0.2; done",
        ),
    ]


def unload_steps() -> list[Step]:
    """Return the steps that take down the guest half, then the hypervisor half."""
    return [
        Step(
            "unload pagetable module",
            f"echo 0 >{_LIVEPATCH}/enabled && while [ -e {_LIVEPATCH} ]; do sleep 0.2; done && rmmod {NAME}",
        ),
        Step("unload pagetable payload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"),
    ]


def pool_step() -> Step:
    """Return a step that prints the pool's counters, for ``pool_sizes``."""
    return Step("pool", f"cd {_SYSFS} && grep . */cached */in_use */hits */misses")


def pool_sizes(result: StepResult) -> dict[str, dict[str, int]]:
    """Return level -> counter -> value from the output of ``pool_step``."""
    sizes: dict[str, dict[str, int]] = {level: {} for level in LEVELS}
    for line in result.output.splitlines():
        path, _, value = line.partition(":")
        level, _, counter = path.partition("/")
        sizes[level][counter] = int(value)
    return sizes
