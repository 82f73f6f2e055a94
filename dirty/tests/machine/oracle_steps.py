# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs of dirty-oracle in a guest, and what they say."""

import json
from collections.abc import Iterable
from typing import Any

from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File, Link, program
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

SWAP = Step("swap", "echo 256M >/sys/block/zram0/disksize && mkswap /dev/zram0 && swapon /dev/zram0")

# What no back end sees, or what is another's business; all other scenarios must be judged.
EXPECTED_SKIPS = {
    "shared-alias own",
    "shared-alias other",
    "exec own",
    "documented-loop own",  # the copier is another process
    "documented-ranges own",
    "exit own",
    "fork-tracker other",
    "guest own",  # no KVM in these machines: test_kvm_guest.py
    "guest other",
}


def files() -> dict[str, File | Link]:
    """Return the oracle and what it needs, as files of a guest."""
    return program(artifacts.program("dirty-oracle"))


def mutant_files() -> dict[str, File | Link]:
    """Return the oracle that can make mistakes; see step."""
    return program(artifacts.mutant("dirty", "rust", "release/dirty-oracle"))


# What the scenarios of huge pages, merged pages and direct I/O need of a machine with a disk.
FILES = "/mnt"
PREPARE = Step(
    "prepare",
    "echo 8 >/proc/sys/vm/nr_hugepages; echo 1 >/sys/kernel/mm/ksm/run; "
    f"mkdir {FILES} && mke2fs /dev/sda >/dev/null && mount -t ext2 /dev/sda {FILES}",
)
DISK_MODULES = ("ahci", "sd_mod", "ext4")


def step(name: str, arguments: str, timeout_s: float, mistake: str = "") -> Step:
    """Return a step that runs the oracle, or a mutant with this mistake; what it prints is one line of JSON.

    Exit code 1, pages were missed, is for the test to judge, which can show which.
    """
    files = f"[ ! -d {FILES} ] || export TMPDIR={FILES}"
    mutant = f"DIRTY_MUTANT={mistake} " if mistake else ""
    return Step(name, f"{files}; {mutant}dirty-oracle {arguments} --json; [ $? -le 1 ]", timeout_s=timeout_s)


def only(names: Iterable[str]) -> str:
    """Return the arguments for these scenarios alone."""
    return " ".join(f"--scenario {name}" for name in names)


def without(names: Iterable[str]) -> str:
    """Return the arguments for all but these scenarios."""
    return " ".join(f"--except {name}" for name in names)


def report(transcript: Transcript, name: str) -> dict[str, Any]:
    """Return what the oracle reported in a step."""
    lines = [line for line in transcript[name].output.splitlines() if line.startswith('{"good"')]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def bad(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that speak against a back end: missed pages, failures, crashes."""

    def is_bad(verdict: dict[str, Any]) -> bool:
        done = verdict.get("done")
        return "crashed" in verdict or (done is not None and bool(done["missed"] or done["failures"]))

    return [row for row in found["rows"] if is_bad(row["verdict"])]


def judged(found: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the scenarios that were run to their end, each with its target."""
    return {(row["scenario"], row["target"]) for row in found["rows"] if "done" in row["verdict"]}


def skipped(found: dict[str, Any]) -> dict[str, str]:
    """Return the scenarios that were not judged, and why."""
    return {
        f"{row['scenario']} {row['target']}": row["verdict"]["skipped"]
        for row in found["rows"]
        if "skipped" in row["verdict"]
    }
