# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Entries that are left out of top tables: put in before anything is mapped behind them, everywhere.

A module maps pages in the middle of what vmalloc() may use, and reads them in the address space of whoever
asks: of processes that are older than trapless_pvmmu, made since, or made meanwhile. It counts the entries
that their top tables lack by comparing them with the kernel's own.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

import pvmmu
from machines import GUEST, STOP_FORKERS, forkers, helper_file, insmod, pvmmu_file
from pvmmu import step
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.session import GuestError
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.parts import PVMMU, PVMMU_PART, PVMMU_SWITCHES
from trapless_lab.releases import INSTALLED

pytestmark = pytest.mark.machine

FAR = "vmalloc_far"
FILES = f"/sys/module/{FAR}/parameters"
# Of some 74 entries in the kernel's half, 64 are for vmalloc(), which uses the first and the last of them.
# Those between are one run, until a page is mapped in its middle.
LEFT_OUT_AT_LEAST = {"left out": 40, "left out again": 20, "left out before it is off": 20}
SLEEPERS = 3
MISTAKE = "half-forgotten"


def _sleepers(name: str) -> Step:
    """Start shells that wait, and then read in their own address spaces, without another process."""
    wait = f"read go <{name}; read missing <{FILES}/missing; read far <{FILES}/read; echo $missing $far"
    return step(
        f"sleepers {name}",
        f"cd /tmp; mkfifo {name}; for i in {_numbers(SLEEPERS)}; do sh -c '{wait}' >{name}.$i 2>&1 & done",
    )


def _woken(name: str) -> Step:
    """Let all of them read, as one gets the line and the others the end, and print what each has read.

    That is how many entries are missing, and how many pages it has read.
    """
    return step(f"woken {name}", f"cd /tmp; echo go >{name}; sleep 1; cat {name}.*")


def _numbers(count: int) -> str:
    return " ".join(map(str, range(1, count + 1)))


MAP = f"echo 1 >{FILES}/map"
MISSING = f"read n <{FILES}/missing; echo $n"
IN_A_CHILD = f"({MISSING})"
# The kernel's own table is looked at again a second after it has got an entry.
AGAIN = "sleep 2"


def _script() -> list[Step]:
    return [
        insmod(FAR),
        _sleepers("older"),
        pvmmu.load(),
        step("left out", IN_A_CHILD),
        _sleepers("newer"),
        step("storm", f"{forkers('fork-exec', 2)}; sleep 1"),
        step("map under forks", f"{MAP}; cat {FILES}/read"),
        _woken("newer"),
        step("again", AGAIN),
        step("left out again", IN_A_CHILD),
        _sleepers("newest"),
        step("map once more", f"{MAP}; cat {FILES}/read"),
        step("stop", STOP_FORKERS),
        _woken("newest"),
        _woken("older"),
        step("wait", AGAIN),
        step("left out before it is off", IN_A_CHILD),
        _sleepers("last"),
        step("off", f"echo 0 >{PVMMU_SWITCHES}/kernel_half"),
        step("not when off", IN_A_CHILD),
        pvmmu.unload(),
        step("not without it", IN_A_CHILD),
        step("map without it", MAP),
        _woken("last"),
    ]


@pytest.fixture(
    scope="module",
    params=[
        ("xen-relaxed", INSTALLED),
        pytest.param(("xen-relaxed-smp", INSTALLED), marks=pytest.mark.long("two CPUs")),
        pytest.param(("xen-relaxed", "6.12-deb13"), marks=pytest.mark.long("another kernel")),
        pytest.param(("xen-relaxed", "6.12-deb12"), marks=pytest.mark.long("another compiler")),
    ],
    ids=["one CPU", "two CPUs", "Linux 6.12", "Linux 6.12 by gcc 12"],
)
def half(request: pytest.FixtureRequest) -> Transcript:
    name, linux = request.param
    return runner.run(
        MACHINES[name].with_linux(linux),
        _script(),
        files={
            PVMMU_PART.guest_path: File(artifacts.module("pagetable", "pvmmu", PVMMU, linux)),
            **helper_file(FAR, linux),
        },
    )


def _read(transcript: Transcript, name: str) -> list[tuple[int, int]]:
    lines = transcript[f"woken {name}"].output.splitlines()
    return [(int(missing), int(far)) for missing, far in map(str.split, lines)]


def test_they_are_left_out(half: Transcript) -> None:
    for when, entries in LEFT_OUT_AT_LEAST.items():
        assert int(half[when].output) >= entries, when


def test_and_put_in_everywhere_before_something_is_mapped(half: Transcript) -> None:
    assert _read(half, "newer") == [(0, 1)] * SLEEPERS
    assert _read(half, "newest") == [(0, 2)] * SLEEPERS
    assert _read(half, "older") == [(0, 2)] * SLEEPERS


def test_nothing_is_left_out_by_what_is_off(half: Transcript) -> None:
    assert int(half["not when off"].output) == int(half["not without it"].output) == 0
    assert _read(half, "last") == [(0, 3)] * SLEEPERS


def test_no_kernel_complains(half: Transcript) -> None:
    assert half.kernel_warnings() == []


@pytest.mark.long("a boot for a control")
def test_entries_that_are_not_put_in_are_noticed(tmp_path: Path) -> None:
    """The machine ends where a process reads what its top table does not lead to."""
    with contextlib.suppress(GuestError):
        runner.run(
            replace(MACHINES["xen-relaxed"], linux_args=("oops=panic",)),
            [
                insmod(FAR),
                step("load", f"insmod {GUEST}/{MISTAKE}.ko"),
                _sleepers("newer"),
                step("map", MAP),
                _woken("newer"),
            ],
            files={**helper_file(FAR), **pvmmu_file(MISTAKE)},
            work_dir=tmp_path,
        )
    assert "unable to handle page fault" in (tmp_path / "console.log").read_text(errors="replace")
