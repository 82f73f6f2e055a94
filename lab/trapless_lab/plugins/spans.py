# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The input of plugins/spans.c, and its output.

Invariant: a recording must be complete and, from the first marker of a guest's program on, contain every
execution of a traced function; otherwise it is an error. spans.c documents the records.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import LabError

_RECORD = struct.Struct("<QIIIHH")
START, STOP, _MISSED, _END = range(0xFF00, 0xFF04)

EVERYWHERE = (0, (1 << 64) - 1)
"""Any code, as the range that may contain a call."""


class Record(NamedTuple):
    """One record: a span, an event, or a marker of the guest's programs.

    ``at`` is in instructions of the whole machine; ``kernel`` and ``xen`` are a span's own, ``point`` is how
    many of both had run when the plan's point was reached. A ``foreign`` span contains instructions of an
    interrupt, a fault or another task.
    """

    at: int
    kernel: int
    xen: int
    point: int
    id: int
    foreign: int

    @property
    def instructions(self) -> int:
        """All of a span's instructions."""
        return self.kernel + self.xen


@dataclass(frozen=True)
class Plan:
    """What to watch, by address: ``calls`` are (entry, id, the code that calls it), the first that fits."""

    calls: Sequence[tuple[int, int, tuple[int, int]]] = ()
    events: Sequence[tuple[int, int]] = ()
    points: Sequence[int] = ()
    foreign: Sequence[int] = ()

    def write(self, path: Path) -> Path:
        """Write the plan for the plugin."""
        lines = [f"call {entry:x} {id:x} {first:x} {last:x}" for entry, id, (first, last) in self.calls]
        lines += [f"event {address:x} {id:x}" for address, id in self.events]
        lines += [f"point {address:x}" for address in self.points]
        lines += [f"foreign {address:x}" for address in self.foreign]
        path.write_text("".join(f"{line}\n" for line in lines))
        return path


def parse(content: bytes) -> list[Record]:
    """Read the plugin's file: its records in the order in which spans began and events happened."""
    if len(content) % _RECORD.size or not content:
        raise LabError("the recording of spans is incomplete")
    *records, end = (Record(*fields) for fields in _RECORD.iter_unpack(content))
    if end.id != _END:
        raise LabError("the recording of spans has no end")
    records.sort(key=lambda record: record.at)
    first = next((i for i, record in enumerate(records) if record.id == START), len(records))
    # During boot the kernel still makes some of its calls through pointers.
    if missed := sum(record.id == _MISSED for record in records[first:]):
        raise LabError(f"{missed} executions of traced functions were not entered by a direct call")
    return records


def between(records: Sequence[Record], start: int, end: int) -> Iterator[Record]:
    """Yield the records that began within a stretch of the machine's instructions."""
    return (record for record in records if start <= record.at < end)
