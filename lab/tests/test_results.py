# SPDX-License-Identifier: Apache-2.0 OR MIT
"""docs/results.md against the results of the committed report: its tables' figures are those of experiments.

The document has figures of full runs, and prose that no program writes. So its tables are not generated: each
cell here is read and compared with what the committed run measured. A quick run has fewer repetitions and
smaller sizes, so it may be a little off; a figure that nobody measures any more, or that a change has moved,
is found all the same.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from trapless_lab.papers import documented, kept, read

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK_OFF, FULL_OFF = 0.06, 0.02
# A quick run has so few pipes that the first ones count, and tracks 64 MiB where the table has 1 GiB.
ROUGH = dict.fromkeys(("pipe, there and back", "soft-dirty", "mprotect", "dbit"), 0.2)
# Its tracker costs more than when the table was made, as the document says; the full run is to be repeated.
ROUGH["uffd-sync"] = 0.3

PROCESS = "process-latency"
LATENCY = "pagetable-latency"
LEVELS = ("L1", "L2", "L3")
MODES = ("bare", "base", "inplace", "pv")

Cells = Mapping[str, tuple[tuple[str, ...] | None, ...]]
"""First cell of a row -> the expressions of each other cell; None: of no experiment, or in words."""


def _process(name: str) -> tuple[tuple[str, ...] | None, ...]:
    share = f"rows[?measure=='{name}'].tax_left_percent | [0]"
    return (*((f"{column}.{name}",) for column in ("bare", "stock", "boosted")), (share,))


def _levels(direction: str) -> tuple[tuple[str, ...] | None, ...]:
    return (*(tuple(f"{of}.{x}.{direction}" for x in LEVELS) for of in ("stock", "boosted")), None)


def _power(name: str) -> tuple[tuple[str, ...] | None, ...]:
    return tuple((f"rows[?workload=='{name}'].{mode} | [0]",) for mode in MODES)


def _guest(name: str) -> tuple[tuple[str, ...] | None, ...]:
    return tuple(
        (f"rows[?backend=='{name}' && density==`1`] | [-1].{key}",)
        for key in ("tracked_insns_per_page", "collect_insns_per_page")
    )


# The first heading of a table, or all of them, and the experiment of its rows.
TABLES: Mapping[tuple[str, str], Cells] = {
    ("a strict dom0", PROCESS): {
        f"{title}, instructions": _process(name)
        for title, name in (("fork+exit", "fork_exit"), ("fork+exec", "fork_exec"), ("fork+sh", "fork_sh"))
    },
    ("with PiBooster", "pagetable-flushes"): {
        "IOTLB flushes per process": (("stock.flushes_per_process",), ("boosted.flushes_per_process",), None),
        "pages the pool holds after the paper's workload": (
            None,
            ("rows[?group=='pre'].held | [0]",),
            None,
        ),
    },
    ("with PiBooster", LATENCY): {
        "a table allocated, instructions: top, middle, bottom level": _levels("allocate"),
        "a table freed": _levels("free"),
    },
    ("plain KVM", "power-exits"): {
        "boot of a small system": _power("boot"),
        "system call": _power("syscall"),
        "pipe, there and back": _power("pipe"),
        "fork+exit": _power("fork"),
        "fork+sh": _power("sh"),
    },
    ("tracked program, instructions per dirtied page", "dirty-guest"): {
        "soft-dirty": _guest("soft-dirty"),
        "mprotect": _guest("mprotect"),
        "uffd-sync": _guest("uffd-sync"),
        "dbit": _guest("dbit"),
    },
}


@pytest.fixture(scope="module")
def tables() -> list[documented.Table]:
    path = DOCS / "results.md"
    if not path.exists():
        pytest.skip("no documents")
    return documented.tables(path.read_text())


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell; M is a million."""
    found = re.findall(r"(\d[\d,]*(?:\.\d+)?)( M\b)?", cell)
    return [float(digits.replace(",", "")) * (1e6 if million else 1) for digits, million in found]


def off(said: float, measured: float) -> float:
    """Return how far a figure is from a measured one, as a share; few digits are rounded."""
    return abs(said - measured) / max(abs(measured), abs(said), 10.0)


def compare(found: list[documented.Table], heading: str, wanted: Cells, one: kept.Kept) -> list[str]:
    """Return what of a table is not as measured."""
    (table,) = [table for table in found if heading in table.headings]
    rows = {
        documented.plain(cells[0]): [documented.plain(cell) for cell in cells[1:]] for cells in table.rows
    }
    assert one.result is not None
    wrong = []
    for label, expressions in wanted.items():
        for at, cell in enumerate(expressions):
            if cell is None:
                continue
            measured = [read.value(expression, one.result) for expression in cell]
            said = numbers(rows[label][at])[: len(cell)]
            most = ROUGH.get(label, QUICK_OFF) if one.quick else FULL_OFF
            if len(said) != len(measured) or any(
                off(a, b) > most for a, b in zip(said, measured, strict=True)
            ):
                wrong.append(f"{label}, {table.headings[at + 1]}: {rows[label][at]}; measured {measured}")
    return wrong


@pytest.mark.parametrize(("heading", "experiment"), TABLES)
def test_a_table_has_what_was_measured(heading: str, experiment: str, tables: list[documented.Table]) -> None:
    found = kept.load(DOCS / "report" / "results", [experiment])
    if experiment not in found:
        pytest.skip(f"the committed report has no result of {experiment}")
    assert compare(tables, heading, TABLES[heading, experiment], found[experiment]) == []


def test_a_figure_that_has_moved_is_found() -> None:
    text = "| a tree | old | new |\n| --- | --- | --- |\n| pears | 59 M, 1,082 | 7.0 |\n"
    result = {"rows": [59_300_000, 1_082.4, 7.2]}
    wanted: Cells = {"pears": (("rows[0]", "rows[1]"), ("rows[2]",))}
    made = kept.Kept("pears", True, "", "", "", 1, 1, result)
    assert compare(documented.tables(text), "a tree", wanted, made) == []
    for other in ([70_000_000, 1_082, 7], [59_000_000, 1_300, 7], [59_000_000, 1_082, 8]):
        moved = kept.Kept("pears", True, "", "", "", 1, 1, {"rows": other})
        assert len(compare(documented.tables(text), "a tree", wanted, moved)) == 1
