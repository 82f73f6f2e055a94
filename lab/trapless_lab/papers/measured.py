# SPDX-License-Identifier: Apache-2.0 OR MIT
"""docs/results.md: the figures of its tables that an experiment measured, written into the document.

A comment before a table names the figures below that are in it. Each keeps the decimals and the unit that it
has in the document; headings, words and all other cells are the document's own.

Invariant: a figure is written only from the result of a full run, and the comment says from which. A comment,
a row or a value that is not there is an error, and then nothing is written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LabError
from . import read
from .kept import Kept

Cells = Mapping[str, tuple[tuple[str, ...], ...]]
"""First cells of a row -> for each cell after them, the expressions of the figures that it begins with."""

NUMBER = re.compile(r"(\d+(?:,\d{3})*(?:\.(\d+))?)( M\b)?")
"""A figure, its decimals, and its unit if that is a million."""
_MARKER = re.compile(r"<!-- measured: ([a-z-]+)(?:, .*)? -->\n")


@dataclass(frozen=True)
class Figures:
    """What one experiment measured of a table."""

    experiment: str
    cells: Cells


def rewrite(text: str, found: Mapping[str, Kept]) -> str:
    """Return the document with the figures of all full runs that were found."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        marker = _MARKER.fullmatch(line)
        if not marker:
            continue
        figures = TABLES.get(marker[1])
        if figures is None:
            raise LabError(f"line {at + 1}: nothing is known of the figures {marker[1]}")
        rows = _rows(lines, at, marker[1], figures)
        one = found.get(figures.experiment)
        if one is None or one.quick or one.result is None:
            continue
        lines[at] = f"<!-- measured: {marker[1]}, {one.began[:10]}, sources {one.commit} -->\n"
        for label, cells in figures.cells.items():
            lines[rows[label]] = _row(lines[rows[label]], label, cells, one.result)
    return "".join(lines)


def _rows(lines: Sequence[str], marker: int, name: str, figures: Figures) -> dict[str, int]:
    """Return the lines of the rows that a comment is about, by label."""
    at = marker
    while at < len(lines) and _MARKER.fullmatch(lines[at]):
        at += 1
    first = at
    while at < len(lines) and lines[at].startswith("|"):
        at += 1
    rows = {}
    for label in figures.cells:
        here = [row for row in range(first, at) if lines[row].startswith(f"| {label} | ")]
        if len(here) != 1:
            raise LabError(f"figures {name}: {len(here)} rows are called {label}")
        rows[label] = here[0]
    return rows


def _row(line: str, label: str, cells: Sequence[Sequence[str]], result: Mapping[str, Any]) -> str:
    texts = line.removeprefix(f"| {label} | ").removesuffix(" |\n").split(" | ")
    if len(texts) != len(cells):
        raise LabError(f"the row {label} has {len(texts)} cells, not {len(cells)}")
    written = (_cell(text, cell, result) for text, cell in zip(texts, cells, strict=True))
    return f"| {' | '.join((label, *written))} |\n"


def _cell(text: str, expressions: Sequence[str], result: Mapping[str, Any]) -> str:
    """Put values in place of the first figures of a cell."""
    parts, end = [], 0
    figures = list(NUMBER.finditer(text))[: len(expressions)]
    if len(figures) != len(expressions):
        raise LabError(f"the cell {text!r} has {len(figures)} figures, not {len(expressions)}")
    for figure, expression in zip(figures, expressions, strict=True):
        value = read.value(expression, result)
        if not isinstance(value, int | float):
            raise LabError(f"the result has no {expression}")
        decimals, million = figure[2] or "", figure[3] or ""
        parts += [
            text[end : figure.start()],
            f"{value / (1e6 if million else 1):z,.{len(decimals)}f}{million}",
        ]
        end = figure.end()
    return "".join([*parts, text[end:]])


def _process(name: str) -> tuple[tuple[str, ...], ...]:
    share = f"rows[?measure=='{name}'].tax_left_percent | [0]"
    return (*((f"{column}.{name}",) for column in ("bare", "stock", "boosted")), (share,))


def _levels(direction: str) -> tuple[tuple[str, ...], ...]:
    levels = "L1", "L2", "L3"
    return (*(tuple(f"{of}.{x}.{direction}" for x in levels) for of in ("stock", "boosted")), ())


def _power(name: str) -> tuple[tuple[str, ...], ...]:
    modes = "bare", "base", "inplace", "pv"
    return tuple((f"rows[?workload=='{name}'].{mode} | [0]",) for mode in modes)


def _guest(name: str) -> tuple[tuple[str, ...], ...]:
    keys = "tracked_insns_per_page", "collect_insns_per_page"
    return tuple((f"rows[?backend=='{name}' && density==`1`] | [-1].{key}",) for key in keys)


def _programs(
    program: str, techniques: Sequence[str], *keys: str, size: str = "large", rows: str = "rows"
) -> tuple[tuple[str, ...], ...]:
    """Return for each key a cell a technique."""
    chosen = f"{rows}[?program=='{program}' && size=='{size}' && technique=="
    return tuple((f"{chosen}'{technique}'].{key} | [0]",) for key in keys for technique in techniques)


_SIZES = "small", "medium", "large"
_COLLECTED = (
    *("gcbench", "string-match", "reverse-index", "linear-regression", "pca", "histogram", "kmeans"),
    *("matrix-multiply", "word-count"),
)
_DUMPED = (
    *("baby", "cache", "stdhash", "stdtree", "tiny", "kmeans", "matrix-multiply", "pca", "word-count"),
)
_BOEHM = "/proc", "dbit", "epml", "mprotect"
_CRIU = "/proc", "dbit", "epml", "uffd-sync"
_SPML = "/proc", "spml"


def _spml_of_boehm(program: str) -> tuple[tuple[str, ...], ...]:
    tracker, over = (
        _programs(program, _SPML, key, size="small", rows="spml")
        for key in ("tracker_ms", "overhead_percent")
    )
    return (*tracker, (f'spml_tracker_of_proc."{program}, small"',), *over)


def _uffd_of_boehm(program: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        cell
        for key in ("tracker_ms", "overhead_percent")
        for technique in ("/proc", "uffd-async")
        for size in _SIZES
        for cell in _programs(program, (technique,), key, size=size, rows="userfaultfd")
    )


TABLES: Mapping[str, Figures] = {
    "process": Figures(
        "process-latency",
        {
            "fork+exit, instructions": _process("fork_exit"),
            "fork+exec, instructions": _process("fork_exec"),
            "fork+sh, instructions": _process("fork_sh"),
        },
    ),
    "flushes": Figures(
        "pagetable-flushes",
        {
            "IOTLB flushes per process": (
                *(("stock.flushes_per_process",), ("boosted.flushes_per_process",)),
                (),
            ),
            "pages the pool holds after the paper's workload": ((), ("rows[?group=='pre'].held | [0]",), ()),
        },
    ),
    "levels": Figures(
        "pagetable-latency",
        {
            "a table allocated, instructions: top, middle, bottom level": _levels("allocate"),
            "a table freed": _levels("free"),
        },
    ),
    "power": Figures(
        "power-exits",
        {
            "boot of a small system": _power("boot"),
            "system call": _power("syscall"),
            "pipe, there and back": _power("pipe"),
            "fork+exit": _power("fork"),
            "fork+sh": _power("sh"),
        },
    ),
    "guest": Figures(
        "dirty-guest",
        {
            **{f"`{name}`": _guest(name) for name in ("soft-dirty", "mprotect", "uffd-sync", "dbit")},
            "`epml` (*model*)": _guest("epml"),
        },
    ),
    "boehm": Figures(
        "dirty-boehm",
        {name: _programs(name, _BOEHM, "tracker_ms", "overhead_percent") for name in _COLLECTED},
    ),
    "boehm-spml": Figures(
        "dirty-boehm", {name: _spml_of_boehm(name) for name in ("gcbench", "string-match", "pca")}
    ),
    "boehm-uffd": Figures("dirty-boehm", {name: _uffd_of_boehm(name) for name in _COLLECTED}),
    "criu": Figures(
        "dirty-criu",
        {
            f"{name} | {size}": _programs(
                name, _CRIU, "tracker_ms", "frozen_ms", "overhead_percent", size=size
            )
            for name in _DUMPED
            for size in _SIZES
        },
    ),
    "criu-memory": Figures(
        "dirty-criu",
        {
            name: _programs(name, _CRIU, "memory_dump_ms", "memory_write_ms", "pages_written")
            for name in _DUMPED
        },
    ),
    "criu-spml": Figures(
        "dirty-criu",
        {
            name: _programs(
                name, _SPML, "tracker_ms", "frozen_ms", "overhead_percent", size="small", rows="spml"
            )
            for name in ("tiny", "pca")
        },
    ),
}
"""Name in the document -> its figures."""
