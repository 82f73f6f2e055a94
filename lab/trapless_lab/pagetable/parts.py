# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The page-table accelerator as steps and guest files, for every experiment and test that boots it.

Invariant: after loading every part is on for every task, after unloading all are gone; otherwise a step
fails.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..machines import pair
from ..machines.initramfs import File
from ..machines.machine import Machine
from ..machines.pair import Pair
from ..machines.script import Step, StepResult

NAME = "trapless_pagetable"
PVMMU = "trapless_pvmmu"
LEVELS = ("pte", "pmd", "pud", "pgd", "user_pgd")

# PGD_ALLOCATION_ORDER is 1 in Debian's kernel, because of PTI.
PAGES_PER_TABLE = {"pgd": 2}

LOAD_MODULE = "load pagetable module"

SYSFS = f"/sys/kernel/{NAME}"

POOL_SWITCH = f"{SYSFS}/enabled"
PVMMU_SWITCHES = f"/sys/kernel/{PVMMU}"


@dataclass(frozen=True)
class Part:
    """A loadable part: its guest file, found on demand, and the steps that load and unload it."""

    name: str
    guest_path: str
    built: Callable[[Pair], Path]
    load: tuple[Step, ...]
    unload: tuple[Step, ...]


# Xen gives its CPUs 30 ms to come together; on a busy host the emulated ones may need another try. While
# pages are marked, every try is refused.
_REVERT = f"for try in 1 2 3 4 5; do xen-livepatch revert {NAME} && break; sleep 1; done"
_UNLOAD = f"{_REVERT}; xen-livepatch unload {NAME}"


def _payload_part() -> Part:
    path = f"/lib/trapless/{NAME}.livepatch"
    return Part(
        "payload",
        path,
        lambda of: of.payload("pagetable", NAME),
        (Step("load pagetable payload", f"xen-livepatch load {path}"),),
        (Step("unload pagetable payload", _UNLOAD),),
    )


def pool_part(parameters: str = "") -> Part:
    """Return the pool, loaded with module parameters as insmod takes them."""
    path = f"/lib/trapless/{NAME}.ko"
    return Part(
        "pool",
        path,
        lambda of: of.module("pagetable", "pool", NAME),
        (Step(LOAD_MODULE, f"insmod {path} {parameters}".rstrip()),),
        (Step("unload pagetable module", f"rmmod {NAME}"),),
    )


def _pvmmu_part() -> Part:
    path = f"/lib/trapless/{PVMMU}.ko"
    return Part(
        "pvmmu",
        path,
        lambda of: of.module("pagetable", "pvmmu", PVMMU),
        (Step("load pvmmu module", f"insmod {path}"),),
        (Step("unload pvmmu module", f"rmmod {PVMMU}"),),
    )


def _rest_off_part() -> Part:
    module = _pvmmu_part()
    # Without the payload its switches (xen_*) cannot be set.
    off = f"for switch in {PVMMU_SWITCHES}/[!x]*; do echo 0 >$switch; done"
    step = Step("all but PiBooster off", f"insmod {module.guest_path} && {off}")
    return Part("rest-off", module.guest_path, module.built, (step,), module.unload)


def _bare_payload_part() -> Part:
    payload = _payload_part()
    off = f"for switch in {PVMMU_SWITCHES}/xen_*; do echo 0 >$switch; done"
    return replace(payload, load=(*payload.load, Step("all but PiBooster off in Xen", off)))


PAYLOAD_PART, POOL_PART, PVMMU_PART = _payload_part(), pool_part(), _pvmmu_part()
UNMARKED_POOL_PART = pool_part("unmarked=1")
"""The pool where the IOMMU does not follow page types: a cache of tables that saves no flush."""
PIBOOSTER = (PAYLOAD_PART, POOL_PART)
"""The parts that make semi-writable page tables."""

PIBOOSTER_ALONE = (_rest_off_part(), _bare_payload_part(), POOL_PART)
"""The same, with everything beyond the paper switched off, for comparison with the paper."""


def everything(machine: Machine) -> tuple[Part, ...]:
    """Return the parts that serve ``machine``, in load order, as ``trapless pagetable load`` loads them."""
    if not machine.xen or machine.dom0 != "pv":
        raise ValueError(f"machine {machine.name} has no PV page tables to accelerate")
    return (PAYLOAD_PART, POOL_PART if machine.iommu == "strict" else UNMARKED_POOL_PART, PVMMU_PART)


def files(parts: Sequence[Part] = PIBOOSTER, of: Pair = pair.DEFAULT) -> dict[str, File]:
    """Return the guest files that the load steps need, built for a pair."""
    return {part.guest_path: File(part.built(of)) for part in parts}


def load_steps(parts: Sequence[Part] = PIBOOSTER) -> list[Step]:
    """Return the steps that bring up the parts, the hypervisor's first."""
    return [step for part in parts for step in part.load]


def unload_steps(parts: Sequence[Part] = PIBOOSTER) -> list[Step]:
    """Return the steps that take the parts down, in reverse."""
    return [step for part in reversed(parts) for step in part.unload]


def pool_step() -> Step:
    """Return a step that prints the pool's counters, for ``pool_sizes``."""
    return Step("pool", f"cd {SYSFS} && grep . */cached */in_use */hits */misses")


def pool_sizes(result: StepResult) -> dict[str, dict[str, int]]:
    """Return level -> counter -> value from the output of ``pool_step``."""
    sizes: dict[str, dict[str, int]] = {level: {} for level in LEVELS}
    for line in result.output.splitlines():
        path, _, value = line.partition(":")
        level, _, counter = path.partition("/")
        sizes[level][counter] = int(value)
    return sizes


def pool_pages(sizes: Mapping[str, Mapping[str, int]], counter: str) -> dict[str, int]:
    """Return level -> pages of its tables that are "cached", ready for allocation, or "in_use"."""
    return {level: counts[counter] * PAGES_PER_TABLE.get(level, 1) for level, counts in sizes.items()}
