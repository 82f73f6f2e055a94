# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The pool's size, the processes and the IOTLB flushes of a workload over its time, sample by sample.

Invariant: a sampler in the guest that makes no process reads the pool's own counters at a steady pace of the
guest's clock, and writes a tick into QEMU's trace each time: so flushes, which QEMU's IOMMU counts, are those
between two samples.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import LabError
from ..machines.script import Step
from ..machines.trace import TICK, total
from ..machines.transcript import Transcript
from . import parts as pagetable

COUNTERS = ("cached", "in_use")

UPTIME = "read -r up _ </proc/uptime; echo $up"
"""Prints the guest's uptime, which is the sampler's clock, without a process."""

_STOP = "/tmp/stop"
_FILE = "/tmp/samples"
_END = "samples"
_SAMPLE = re.compile(r"^sample at=(\d+)((?: \w+=\d+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """One moment: when, what the kernel and the pool counted, and the flushes since the sample before."""

    at_s: float
    values: Mapping[str, int]
    flushes: int

    def pages(self, counter: str, levels: Sequence[str] = pagetable.LEVELS) -> int | None:
        """Return the pages of some levels, if the pool was loaded."""
        names = [f"{level}_{counter}" for level in levels]
        if not all(name in self.values for name in names):
            return None
        return sum(
            self.values[name] * pagetable.PAGES_PER_TABLE.get(level, 1)
            for name, level in zip(names, levels, strict=True)
        )

    @property
    def held(self) -> int | None:
        """All pages that the pool has."""
        found = [self.pages(counter) for counter in COUNTERS]
        return None if None in found else sum(pages or 0 for pages in found)


def start(every_ms: int) -> Step:
    """Return the step that starts the sampler; only one may run at a time."""
    pool = " ".join(
        f"{level}_{counter}={pagetable.SYSFS}/{level}/{counter}"
        for level in pagetable.LEVELS
        for counter in COUNTERS
    )
    watched = f"processes=/proc/stat:processes tasks=/proc/loadavg:/ {pool}"
    return Step("sample", f"rm -f {_STOP}; sampled {every_ms} {_STOP} {watched} >{_FILE} &")


def end() -> Step:
    """Return the step that ends the sampler and prints what it has, for ``read``."""
    # Half an hour's samples are a minute of the console on an idle host.
    return Step(_END, f"echo >{_STOP}; sleep 1; cat {_FILE}", timeout_s=900)


def read(transcript: Transcript) -> tuple[float, list[Sample]]:
    """Return when the first sample was taken, in seconds of the guest's uptime, and all, relative to it.

    Raises LabError if samples and ticks do not belong to each other.
    """
    taken = _SAMPLE.findall(transcript[_END].output)
    counted = list(_flushes(transcript))
    # The file may lack the sample whose tick was the last.
    if not taken or not 0 <= len(counted) - len(taken) <= 1:
        raise LabError(f"the sampler printed {len(taken)} samples and wrote {len(counted)} ticks")
    first = int(taken[0][0])
    return first / 1e9, [
        Sample(
            (int(at) - first) / 1e9,
            {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", values)},
            count if number else 0,
        )
        for number, ((at, values), count) in enumerate(zip(taken, counted, strict=False))
    ]


def within(samples: Sequence[Sample], start: float, end: float) -> Sequence[Sample]:
    """Return the samples of a stretch."""
    return [sample for sample in samples if start < sample.at_s <= end]


def flushes(samples: Sequence[Sample], start: float, end: float) -> int:
    """Return the flushes of a stretch."""
    return sum(sample.flushes for sample in within(samples, start, end))


def processes(samples: Sequence[Sample], start: float, end: float) -> int:
    """Return the processes and threads that were made in a stretch."""
    forks = [sample.values["processes"] for sample in within(samples, start, end)]
    return forks[-1] - forks[0] if forks else 0


def _flushes(transcript: Transcript) -> Iterator[int]:
    """Yield the flushes before each tick, since the tick before."""
    since = 0
    for bucket in transcript.buckets:
        if bucket.opened_by == TICK:
            yield since
            since = 0
        since += total([bucket]).flushes
