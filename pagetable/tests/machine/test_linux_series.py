# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The patches for Linux's sources: every kernel boots, and memory is as under the stock one.

``make -C pagetable linux-source`` compiles a small kernel for each patch (linux-source/build). The witnesses
are the programs that also test the module, and the warnings of both kernels. What each patch saves is
measured by the experiment linux-series.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import pvmmu
from pvmmu import step
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step
from trapless_lab.machines.session import GuestError
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.experiments.linux_series import PATCHES

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("compiles a dozen kernels, two of them whole: about 25 minutes of a processor"),
]

WARNING = re.compile(r"WARNING: .* at include/linux/mm_inline\.h:\d+ ")
REFUSED = re.compile(r"WARNING: .* at arch/x86/xen/multicalls\.c:\d+ xen_mc_flush")

# As on Debian's 6.12 (test_later_kernels.py), and what the fix is about.
PROGRAMS = (
    *("cow", "cow --seed 2 --pages 128", "cowthreads 20", "pinned", "filemap race 40"),
    *(f"tracked {case}" for case in ("soft-dirty", "merged", "uffd", "dirty", "free", "swap", "flush")),
)
ZAPPED = ("zapped plain", "zapped marked")

# Of mistakes/memory.patch: the programs that must fail, and what they print then.
CAUGHT = {
    "tracked dirty": "Private_Dirty is",
    "tracked free": "free: page",
    "tracked flush": "flush: page 3 does not hold",
}


def booted(machine: str, variant: str) -> Machine:
    return replace(MACHINES[machine], kernel=artifacts.linux_variant(variant))


def small(machine: str, variant: str) -> Transcript:
    """Boot, and use what the patches change, for a few seconds."""
    steps = [pvmmu.SWAP, *pvmmu.oracles("on", ("cow", "filemap read", "tracked swap"))]
    return runner.run(booted(machine, variant), [*steps, step("processes", "spawn fork-sh -n 20")])


@pytest.mark.parametrize("variant", ["0", *PATCHES])
def test_each_kernel_boots_and_works(variant: str) -> None:
    """A strict dom0: the IOMMU has to follow what the patches do to page tables as well."""
    assert small("xen-strict", variant).kernel_warnings() == []


def test_the_series_works_without_xen() -> None:
    assert small("bare-smp", max(PATCHES)).kernel_warnings() == []


@pytest.mark.parametrize("variant", [max(PATCHES), "lockdep"])
def test_memory_on_two_cpus(variant: str) -> None:
    """lockdep also has checks of the page tables, of sleeping, of lists and of the kernel's own counts."""
    transcript = runner.run(booted("xen-relaxed-smp", variant), [pvmmu.SWAP, *pvmmu.oracles("on", PROGRAMS)])
    assert transcript.kernel_warnings() == []


def test_mistakes_are_caught(tmp_path: Path) -> None:
    """The control: fork loses dirty bits, an entry is not flushed, entries are written after the lock."""
    transcript = runner.run(
        booted("xen-relaxed-smp", "memory.patch"),
        [pvmmu.SWAP, *(step(program, program, None) for program in (*CAUGHT, "filemap race 10"))],
    )
    for program, message in CAUGHT.items():
        assert transcript[program].rc != 0 and message in transcript[program].output
    assert any("Bad page cache" in line for line in transcript.kernel_warnings())


def test_a_walk_that_skips_a_table_is_caught(tmp_path: Path) -> None:
    """Xen refuses to pin a table that is still mapped writable. The kernel may go on for minutes then."""
    machine = replace(booted("xen-relaxed", "walk.patch"), linux_args=("panic_on_warn=1",))
    with pytest.raises(GuestError):
        runner.run(machine, [Step("boot", "true")], work_dir=tmp_path)
    assert REFUSED.search((tmp_path / "console.log").read_text(errors="replace"))


def zapped(variant: str) -> Transcript:
    return runner.run(
        booted("xen-relaxed", variant), [pvmmu.SWAP, *(step(program, program) for program in ZAPPED)]
    )


def test_stock_warns_of_an_entry_that_is_queued_and_the_fix_ends_it() -> None:
    """The markers are there on both: what is wrong is the warning."""
    assert [line for line in zapped("0").kernel_warnings() if WARNING.search(line)]
    assert zapped("fix").kernel_warnings() == []
