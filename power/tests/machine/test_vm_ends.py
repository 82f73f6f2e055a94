# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM that ends leaves nothing in its host, although its execute pages were full and fragments were evicted:
guests that reset themselves, and VMMs that are killed while their guest works.

The host's own counts of pages are compared after its caches are dropped. The negative control is a VM that
has not ended: it shows how much memory a leaked VM would hold.
"""

import re

import pytest

from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

# The guest's kernel has hundreds of fragments; a page has room for 64.
CACHE_PAGES = "/sys/module/kvm/parameters/bt_cache_pages"
RUN = "run=getppid,fork"
# With so few execute pages it runs for a second of the host's clock.
LONGER = "run=boot"
IN_THE_MIDDLE_MS = 250
HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-65536kB/free_hugepages"
PAGE_KIB = 4
COUNTED = ("AnonPages", "Cached", "Slab", "KernelStack", "PageTables", "VmallocUsed")
# Free memory in the host's allocators' own lists: less than a page for each VM.
SLACK = {"huge pages": 0, "slabs": 2, "pages": 2}


def _measure(label: str) -> list[str]:
    return [
        "write /proc/sys/vm/drop_caches 3",
        f"show {label} /proc/meminfo",
        f"show {label}.huge-pages {HUGE_PAGES}",
        f"show {label}.zones /proc/zoneinfo",
    ]


def _vms() -> list[str]:
    """Two VMs that end themselves, one of them with small pages, and one that is killed.

    They always have the same names, as files that a VMM writes take memory of the host.
    """
    ended = [
        Vm("ended", MODES["inplace"], RUN),
        Vm("small-pages", MODES["inplace"], RUN, backing="anonymous"),
    ]
    return [
        *power.one_after_another(ended),
        *power.killed([Vm("killed", MODES["inplace"], LONGER)], IN_THE_MIDDLE_MS),
    ]


def _run(times: int, timeout_s: float) -> power.Console:
    there = [
        Vm("there", MODES["inplace"], LONGER),
        Vm("there-small-pages", MODES["inplace"], LONGER, backing="anonymous"),
    ]
    return power.in_host(
        [
            f"write {CACHE_PAGES} 1",
            *_vms(),
            *_measure("before"),
            *(_vms() * times),
            *_measure("after"),
            *power.killed(there, 2 * IN_THE_MIDDLE_MS, _measure("during")),
        ],
        how=How(timeout_s=timeout_s),
    )


def _memory(console: power.Console, label: str) -> dict[str, int]:
    """Pages, huge ones too, that are free or whose use the kernel counts; the rest is unaccounted for."""
    lines = re.findall(r"^(\w+): +(\d+) kB$", console.of(label).text, re.MULTILINE)
    pages = {name: int(value) // PAGE_KIB for name, value in lines}
    zones = console.of(f"{label}.zones").text
    # Including pages in per-CPU lists, which MemFree leaves out.
    free = sum(map(int, re.findall(r"^ +(?:nr_free_pages +|count: )(\d+)$", zones, re.MULTILINE)))
    return {
        "huge pages": int(console.of(f"{label}.huge-pages").text),
        "slabs": -pages["SUnreclaim"],
        "pages": free + sum(pages[name] for name in COUNTED),
    }


def _lost(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return how many pages of the host's memory are lost."""
    return [name for name in before if before[name] - after[name] > SLACK[name]]


def _require_nothing_lost(console: power.Console, times: int) -> None:
    before, after, during = (_memory(console, label) for label in ("before", "after", "during"))
    for label in ("ended", "small-pages"):
        evicted = re.findall(r"^bt_evicted:(\d+)$", console.of(f"{label}.statistics").text, re.MULTILINE)
        assert len(evicted) == 1 + times and min(map(int, evicted)) > 0
    print(before, after, during)
    assert _lost(before, after) == []
    assert _lost(before, during) == ["huge pages", "slabs", "pages"]


def test_nothing_is_lost() -> None:
    _require_nothing_lost(_run(2, 300), 2)


@pytest.mark.long("the same with sixty VMs; make check has six")
def test_nothing_is_lost_by_sixty() -> None:
    _require_nothing_lost(_run(20, 1200), 20)
