# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Any build of Xen with the payload that is made for it, booted.

In the first boot it must refuse the payloads of other builds, then its own is loaded, and QEMU counts the
IOTLB flushes of a workload before and after. In the second table_test compares this Xen with and without the
payload.

Invariant: what is wrong is returned, a line each; an empty list is the only success.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tables
from machines import GUEST, SPAWN, STOCK_FLUSHES, insmod, table_test_file
from trapless_lab import host
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

SOURCES = Path(__file__).resolve().parents[2] / "xen"


@dataclass(frozen=True)
class Build:
    """An image and its payload; ``toolstack`` is a folder of unpacked packages, if it is not the host's."""

    name: str
    image: Path
    payload: Path
    log: str
    toolstack: Path = host.ROOT

    @property
    def machine(self) -> Machine:
        """The machine that boots it."""
        return MACHINES["xen-strict"].with_xen(self.toolstack).with_image(self.image).with_icount()


@dataclass(frozen=True)
class Verdict:
    """``wrong`` has what must not be; ``summary`` is for who reads that all is well."""

    summary: str
    wrong: list[str] = field(default_factory=list)


class Refused(Exception):
    """No payload can be built; the text is what the build said."""


def build(name: str, image: Path, symbols: Path, out: Path, toolstack: Path = host.ROOT) -> Build:
    """Prove an image and build its payload in ``out``."""
    command = ["make", "-C", str(SOURCES), "payload", f"XEN={image}", f"XEN_SYMS={symbols}", f"O={out}"]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode:
        raise Refused(made.stdout)
    return Build(name, image, out / f"{pagetable.NAME}.livepatch", made.stdout, toolstack)


def flushes(one: Build, others: Sequence[Build], log: Path) -> Verdict:
    """The payloads of other builds are refused, its own loads, and the flushes end."""
    own = pagetable.PAYLOAD_PART.guest_path
    files: Tree = {**pagetable.files(pagetable.PIBOOSTER[1:]), own: File(one.payload)}
    refusals = []
    for number, other in enumerate(others):
        path = f"{GUEST}/other{number}.livepatch"
        files = {**files, path: File(other.payload)}
        refusals.append(Step(f"payload of {other.name}", f"xen-livepatch load {path}", expect=None))
    transcript = runner.run(
        one.machine,
        [
            Step("stock", SPAWN),
            *refusals,
            Step("nothing was loaded", "xen-livepatch list"),
            *pagetable.load_steps(),
            Step("warm", SPAWN),
            Step("boosted", SPAWN),
            *pagetable.unload_steps(),
            Step("stock again", SPAWN),
        ],
        files=files,
        work_dir=log,
    )
    pages = {name: transcript.counts(name).pages for name in ("stock", "boosted", "stock again")}
    boosted = pages.pop("boosted")
    wrong = [f"{name}: {count} flushes" for name, count in pages.items() if count < STOCK_FLUSHES]
    wrong += [f"boosted: {boosted} flushes"] if boosted else []
    wrong += [f"{s.name} was not refused" for s in refusals if "failed" not in transcript[s.name].output]
    if "Nothing to list" not in transcript["nothing was loaded"].output:
        wrong.append("a payload of another build was loaded")
    summary = f"{len(others)} payloads of other builds refused; flushes {pages}, boosted {boosted}"
    return _judge(wrong, transcript, summary)


def same_as_stock(one: Build, seeds: Sequence[int], rounds: int, log: Path) -> Verdict:
    """Check that table_test gets the same results from this Xen with and without the payload.

    Where stock Xen itself answers differently, "stock again" says so before a payload is judged.
    """
    own = pagetable.PAYLOAD_PART.guest_path
    transcript = runner.run(
        one.machine,
        [
            insmod(tables.MODULE),
            tables.leg("record", seeds, rounds, "record"),
            tables.leg("stock again", seeds, rounds, "compare"),
            *pagetable.load_steps((pagetable.PAYLOAD_PART,)),
            tables.leg("boosted", seeds, rounds, "compare"),
            tables.leg("interrupted", seeds, rounds, "compare", preempt=True),
        ],
        files={**table_test_file(), own: File(one.payload)},
        work_dir=log,
    )
    legs = [tables.parse(transcript[name]) for name in ("record", "stock again", "boosted", "interrupted")]
    counters = ("illegal", "leaked", "kept_data", "kept_l1")
    wrong = [leg.output for leg in legs if not leg.ok or any(leg.counters[name] for name in counters)]
    wrong += [
        f"compared {leg.compared} of {leg.calls} calls" for leg in legs[1:] if leg.compared != leg.calls
    ]
    return _judge(wrong, transcript, f"{sum(leg.calls for leg in legs[2:])} calls as stock, no difference")


def _judge(wrong: list[str], transcript: Transcript, summary: str) -> Verdict:
    return Verdict(summary, [*wrong, *transcript.kernel_warnings()])
