# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Shared by the machine tests: where the built parts are in a guest, and common steps."""

import re
from pathlib import Path

from trapless_lab import artifacts
from trapless_lab.machines.free_memory import HOARDED
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.installed import TABLE_TEST, modules, tool
from trapless_lab.pagetable.parts import NAME, PVMMU
from trapless_lab.releases import INSTALLED

GUEST = "/lib/trapless"

_PROCESSES = 40
SPAWN = f"spawn fork-exec -n {_PROCESSES}"
STOCK_FLUSHES = 15 * _PROCESSES
"""Of the IOTLB, at least, while a strict dom0 without trapless runs SPAWN."""
KEPT_OUT = {"normal": "written", "semi_writable": "blocked", "released": "written"}
"""What a device's write must come to in each phase of pagetable-dma."""

# Tables are freed after a grace period; then free memory is what it was.
MEMORY = f"sleep 1; {HOARDED}; grep -E '^(MemFree|PageTables):' /proc/meminfo"
"""Prints what ``require_memory_back`` compares, in the steps "memory before" and "memory after"."""
# The kernel's caches, which a fork grows.
_FREE_NOISE_KIB = 1024
# The counter lags by a per-CPU batch; leaked tables would be 1,000 KiB or more.
_TABLES_NOISE_KIB = 128

_FORKERS = "/tmp/forkers"
# By PID: a child has the same name until it executes another program.
ALIVE_FORKERS = f"n=0; while read -r pid; do kill -0 $pid && n=$((n + 1)); done <{_FORKERS}; echo alive $n"
"""Prints how many of ``forkers`` there are."""
STOP_FORKERS = f"while read -r pid; do kill $pid && echo stopped || exit 1; done <{_FORKERS}"
"""Ends all of ``forkers``, each with a line; fails if one has ended already."""


def _memory(transcript: Transcript, step: str) -> tuple[int, int]:
    """Return the KiB that are free, and those that are page tables."""
    seen = re.findall(r"^(\w+):? +(\d+)", transcript[step].output, re.MULTILINE)
    kib = {name: int(count) for name, count in seen}
    return kib["MemFree"] + kib["hoarded"], kib["PageTables"]


def require_memory_back(
    transcript: Transcript, before: str = "memory before", after: str = "memory after"
) -> None:
    """Require that page tables are gone, and that as much memory is free as there was."""
    (free, tables), (free_after, tables_after) = _memory(transcript, before), _memory(transcript, after)
    assert abs(free_after - free) <= _FREE_NOISE_KIB
    assert abs(tables_after - tables) <= _TABLES_NOISE_KIB


def installed() -> Tree:
    """Return the tool and all parts where it looks for them."""
    payload = File(artifacts.payload("pagetable", NAME))
    return {**tool(), **modules(), f"/usr/lib/trapless/this-build/{NAME}.livepatch": payload}


def payload_file(mistake: str = "") -> dict[str, File]:
    """Return the payload, or under the mistake's name the mutant with that mistake."""
    return _file("payload", f"{NAME}.livepatch", artifacts.payload("pagetable", NAME), mistake)


def pool_file(mistake: str = "") -> dict[str, File]:
    """Return the pool's module, or a mutant of it."""
    return _file("pool", f"{NAME}.ko", artifacts.module("pagetable", "pool", NAME), mistake)


def pvmmu_file(mistake: str = "") -> dict[str, File]:
    """Return the module that saves traps and hypercalls, or a mutant of it."""
    return _file("pvmmu", f"{PVMMU}.ko", artifacts.module("pagetable", "pvmmu", PVMMU), mistake)


def helper_file(name: str, linux: str = INSTALLED) -> dict[str, File]:
    """Return one of the modules that only test, for the host's kernel or another one."""
    return {f"{GUEST}/{name}.ko": File(artifacts.module("pagetable", "tests/module", name, linux))}


def table_test_file() -> dict[str, File]:
    """Return the module of the differential test."""
    return {f"{GUEST}/{TABLE_TEST}.ko": File(artifacts.module("pagetable", "table_test", TABLE_TEST))}


def _file(part: str, file: str, product: Path, mistake: str) -> dict[str, File]:
    if not mistake:
        return {f"{GUEST}/{file}": File(product)}
    mutant = artifacts.mutant("pagetable", f"{part}-{mistake}", file)
    return {f"{GUEST}/{mistake}{product.suffix}": File(mutant)}


def insmod(module: str = NAME, parameters: str = "", name: str | None = None, expect: int | None = 0) -> Step:
    """Return a step that loads a module and, if that fails, shows why."""
    command = f"insmod {GUEST}/{module}.ko {parameters} || {{ dmesg | tail -5; false; }}"
    return Step(name or f"insmod {module}", command, expect=expect)


def forkers(what: str, count: int) -> str:
    """Return the shell command that starts processes which fork without end; ``what`` is spawn's workload."""
    return f"for i in $(seq {count}); do spawn {what} -n 1000000 >/dev/null 2>&1 & echo $! >>{_FORKERS}; done"


def refused(transcript_output: str, reason: str) -> bool:
    """Whether a module said why it did not load."""
    return "can't insert" in transcript_output and reason in transcript_output
