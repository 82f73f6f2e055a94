# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Steps that the tests of the guest module share: it comes, cases are tried, what it leaves behind, it goes.

Invariant: what is left behind is the kernel's word (its allocation traces, its counts), never the module's.
"""

import re

from trapless_lab import artifacts
from trapless_lab.machines import guest
from trapless_lab.machines.free_memory import HOARDED
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.releases import INSTALLED, Linux

NAME = "trapless_dirty"
GUEST = "/lib/trapless"

# The kernel's own debug options, as far as Debian's kernel is built with them: consistency checks, red zones,
# poison and the caller of each allocation, and poisoned free pages.
DEBUG_ARGS = ("slub_debug=FZPU", "page_poison=1")


# On a disk, which the kernel keeps a swap cache for. dirtykeep needs it.
SWAP = Step("swap", "mkswap /dev/sda && swapon /dev/sda")


def module_files(*mutants: str, linux: Linux = INSTALLED) -> dict[str, File]:
    """Return the module for a kernel, and those mutants of it, as files of a guest."""
    products = {NAME: artifacts.module("dirty", "module", NAME, linux)}
    products |= {mutant: artifacts.mutant("dirty", mutant, f"{NAME}.ko", linux) for mutant in mutants}
    return {f"{GUEST}/{name}.ko": File(product) for name, product in products.items()}


def insmod(module: str = NAME, name: str | None = None, expect: int | None = 0) -> Step:
    """Return a step that loads the module, or a mutant, and if that fails shows why."""
    command = f"insmod {GUEST}/{module}.ko || {{ dmesg | tail -5; false; }}"
    return Step(name or f"insmod {module}", command, expect=expect)


def rmmod(name: str = "rmmod") -> Step:
    """Return a step that unloads whichever is loaded."""
    return Step(name, f"rmmod {NAME}")


def cases(program: str, name: str | None = None, only: str = "", timeout_s: float = 400) -> Step:
    """Return a step that runs a program's cases, all or those named; the test looks at each."""
    return Step(name or program, f"{program} {only}; [ $? -le 1 ]", timeout_s=timeout_s)


def names_of(program: str) -> list[str]:
    """Return the cases that a program's source lists."""
    table = guest.source(program).read_text().partition("test_case cases[] = {")[2].partition("};")[0]
    return re.findall(r'\{ "([a-z-]+)",', table)


def failed(transcript: Transcript, step: str) -> list[str]:
    """Return the cases of a step that did not end well."""
    return re.findall(r"^FAILED (\S+) ", transcript[step].output, re.MULTILINE)


def passed(transcript: Transcript, step: str) -> list[str]:
    """Return the cases of a step that ended well."""
    return re.findall(r"^ok (\S+)$", transcript[step].output, re.MULTILINE)


def fuzzed(transcript: Transcript, step: str) -> dict[str, tuple[int, int]]:
    """Return how often each command was taken and refused by dirtyfuzz."""
    found = re.findall(r" (\w+)=(\d+)/(\d+)", transcript[step].output)
    return {command: (int(taken), int(refused)) for command, taken, refused in found}


# Each line is a place of the module from which memory was allocated that is not freed: of the slab allocator,
# by its debugfs files, which the debug options make, and of vmalloc.
_TRACES = f"""
mount -t debugfs none /sys/kernel/debug 2>/dev/null
grep -hE '^ *[0-9]+ .*\\[{NAME}\\]' /sys/kernel/debug/slab/kmalloc*/alloc_traces
grep -h '\\[{NAME}\\]' /proc/vmallocinfo"""


def allocations(name: str) -> Step:
    """Return a step that lists what the module has allocated and has not freed a minute later."""
    command = f'n=0; while left=$({_TRACES}); [ -n "$left" ] && [ $n -lt 60 ]; do n=$((n + 1)); sleep 1; done'
    return Step(name, f'{command}; echo "$left"', timeout_s=400)


def held(name: str) -> Step:
    """Return a step that does so while a process tracks itself: there must be something."""
    start = "dirtykill hold >/tmp/held & held=$!; until grep -q holding /tmp/held; do sleep 0.1; done"
    return Step(name, f"{start}; {_TRACES}; kill -9 $held; wait $held; true")


def released(name: str) -> Step:
    """Return a step that waits until nobody uses the module: memories end after a grace period."""
    return Step(name, f"sync; until [ $(cat /sys/module/{NAME}/refcnt) = 0 ]; do sleep 0.1; done; sleep 2")


# Slab objects that the kernel makes for the module, and memory as a whole: what is free, and what each CPU
# hoards of it ("hoarded", in KiB). First, until a second brings no more: on a busy host what was let go takes
# its time.
_FREE = "$(awk '$1 == \"MemFree:\" {print $2}' /proc/meminfo)"
MEMORY = (
    "sleep 2; n=0; free=0; while was=$free; echo 3 >/proc/sys/vm/drop_caches; "
    f"echo 1 >/proc/sys/vm/compact_memory; sleep 1; free={_FREE}; "
    "[ $free -gt $((was + 64)) ] && [ $n -lt 30 ]; do n=$((n + 1)); done; "
    "awk '$1 == \"mm_struct\" {print $1, $2}' /proc/slabinfo; "
    f"{HOARDED}; "
    "grep -E '^(MemFree|Cached|AnonPages|PageTables|Slab|VmallocUsed|Percpu):' /proc/meminfo"
)


def numbers(transcript: Transcript, step: str) -> dict[str, int]:
    """Return what a step printed as "name value" or "name: value kB"."""
    found = re.findall(r"^([\w/]+):? +(\d+)(?: kB)?$", transcript[step].output, re.MULTILINE)
    return {name: int(value) for name, value in found}
