# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads QEMU's device trace: which operations the IOMMU executed, between which markers.

Invariant: every event is counted in exactly one bucket, by its place among the markers and never by time. A
step's own buckets include the exit of the process that wrote its begin marker.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

# What the events of QEMU's IOMMUs, VT-d and AMD-Vi, count as: a field of Counts.
_COUNTED = {
    "vtd_inv_desc_iotlb_pages": "pages",
    "vtd_inv_desc_iotlb_domain": "domain",
    "vtd_inv_desc_iotlb_global": "everything",
    "vtd_dmar_fault": "faults",
    "amdvi_pages_inval": "pages",
    "amdvi_all_inval": "everything",
    "amdvi_page_fault": "faults",
}
EVENTS = (*_COUNTED, "parallel_ioport_write")

TICK = "tick"
_TICK_BYTE = 0x07
_NEWLINE = 0x0A
_PRINTABLE = range(0x20, 0x7F)

# Only the data register (0x00) carries markers; the firmware probes the others.
_DATA_WRITE = re.compile(r"parallel_ioport_write write \[SW\] addr 0x00 val 0x([0-9a-f]{2})")
_FRAME = re.compile(r"(begin|end) (\d{4})")


@dataclass(frozen=True)
class Counts:
    """IOTLB invalidations by what they cover, and refused device accesses."""

    pages: int = 0
    domain: int = 0
    everything: int = 0
    faults: int = 0

    @property
    def flushes(self) -> int:
        """All invalidations."""
        return self.pages + self.domain + self.everything

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))


@dataclass(frozen=True)
class Bucket:
    """The events from one marker to the next.

    ``opened_by`` is "begin" or "end" of a step, a tick, or another marker's text (empty at the start);
    ``step`` is the index of the step that was running, if any.
    """

    opened_by: str
    step: int | None
    counts: Counts


def parse(lines: Iterable[str]) -> tuple[Bucket, ...]:
    """Split a trace at its markers; unknown lines are skipped."""
    buckets: list[Bucket] = []
    opened_by, step, steps_begun = "", None, 0
    tally: Counter[str] = Counter()
    text = ""

    def cut(marker: str, running: int | None) -> None:
        nonlocal opened_by, step
        buckets.append(Bucket(opened_by, step, Counts(**tally)))
        tally.clear()
        opened_by, step = marker, running

    for line in lines:
        event = line.partition(" ")[0]
        if event in _COUNTED:
            tally[_COUNTED[event]] += 1
            continue
        write = _DATA_WRITE.match(line)
        if write is None:
            continue
        byte = int(write[1], 16)
        if byte == _TICK_BYTE:
            cut(TICK, step)
        elif byte == _NEWLINE:
            frame = _FRAME.fullmatch(text)
            # As in the step log, only the expected frame counts.
            if frame and frame[1] == "begin" and step is None and int(frame[2]) == steps_begun:
                cut("begin", steps_begun)
                steps_begun += 1
            elif frame and frame[1] == "end" and step == int(frame[2]):
                cut("end", None)
            else:
                cut(text, step)
            text = ""
        elif byte in _PRINTABLE:
            text += chr(byte)
        else:
            text = ""  # firmware noise; the next marker is complete
    cut("", None)
    return tuple(buckets)


def total(buckets: Iterable[Bucket]) -> Counts:
    """Sum the events of some buckets."""
    return sum((bucket.counts for bucket in buckets), Counts())
