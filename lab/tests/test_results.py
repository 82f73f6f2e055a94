# SPDX-License-Identifier: Apache-2.0 OR MIT
"""docs/results.md against the results of the committed report: its tables' figures are those of experiments.

Figures of a full run are what the generator makes of it. A quick run has fewer repetitions and smaller
sizes, so a figure of the document may be a little off; one that nobody measures any more, or that a change
has moved, is found all the same.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jmespath
import pytest

from trapless_lab import catalogue
from trapless_lab.errors import LabError
from trapless_lab.papers import kept, measured
from trapless_lab.papers.kept import Kept
from trapless_lab.papers.measured import Figures

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUICK_OFF = 0.06
# A quick run has so few pipes that the first ones count, and tracks 64 MiB where the table has 1 GiB.
ROUGH = dict.fromkeys(("pipe, there and back", "`soft-dirty`", "`mprotect`", "`dbit`"), 0.2)
# Its tracker costs more than when the table was made, as the document says; the full run is to be repeated.
ROUGH["`uffd-sync`"] = 0.3
# Not compared: of 64 MiB most of a collect is what does not depend on the size.
ROUGH["`epml` (*model*)"] = 1


@pytest.fixture(scope="module")
def document() -> str:
    path = DOCS / "results.md"
    if not path.exists():
        pytest.skip("no documents")
    return path.read_text()


@pytest.fixture(scope="module")
def committed() -> Mapping[str, Kept]:
    names = {figures.experiment for figures in measured.TABLES.values()}
    return kept.load(DOCS / "report" / "results", names)


def test_every_table_is_marked_once_and_its_experiment_exists(document: str) -> None:
    assert sorted(re.findall(r"<!-- measured: ([^ ,]+)", document)) == sorted(measured.TABLES)
    assert {figures.experiment for figures in measured.TABLES.values()} <= set(catalogue.experiments())
    for figures in measured.TABLES.values():
        for cells in figures.cells.values():
            for expression in sum(cells, ()):
                jmespath.compile(expression)


def test_full_runs_have_made_it(document: str, committed: Mapping[str, Kept]) -> None:
    assert any(not one.quick and one.result for one in committed.values())  # otherwise nothing is compared
    assert measured.rewrite(document, committed) == document


def figures_of(line: str) -> list[float]:
    return [float(figure[0].replace(",", "")) for figure in measured.NUMBER.findall(line)]


def off(document: str, found: Mapping[str, Kept]) -> list[str]:
    """Return the rows that are not as quick runs have them, by more than their roughness."""
    full = {name: replace(one, quick=False) for name, one in found.items() if one.quick}
    wrong = []
    pairs = zip(document.splitlines(), measured.rewrite(document, full).splitlines(), strict=True)
    for old, new in pairs:
        if not old.startswith("|"):
            continue
        most = ROUGH.get(old.split(" | ")[0].removeprefix("| "), QUICK_OFF)
        both = zip(figures_of(old), figures_of(new), strict=True)
        # Few digits are rounded.
        if any(abs(a - b) > most * max(a, b, 10) for a, b in both):
            wrong.append(f"{old}; measured {new}")
    return wrong


def test_quick_runs_have_about_the_same(document: str, committed: Mapping[str, Kept]) -> None:
    assert off(document, committed) == []


TREES = "| a tree | old | new |\n| --- | --- | --- |\n| pears | 59 M, 1,082 | 7.0 of 9 |\n| plums | 3 | 4 |\n"
MARKED = f"# Trees\n\n<!-- measured: trees -->\n<!-- measured: others -->\n{TREES}\npears 59\n"


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "trees": Figures("trees", {"pears": (("rows[0]", "rows[1]"), ("rows[2]",))}),
        "others": Figures("others", {"plums": ((), ("here",))}),
        "no-row": Figures("trees", {"apples": ((), ())}),
        "twice": Figures("trees", {"pears": (("rows[0]", "rows[1]", "rows[2]"), ())}),
        "cells": Figures("trees", {"pears": (("rows[0]",),)}),
        "no-value": Figures("trees", {"pears": (("rows[9]",), ())}),
        "words": Figures("trees", {"pears": (("unit",), ())}),
    }
    monkeypatch.setattr(measured, "TABLES", known)


def run(rows: Sequence[float], *, quick: bool = False) -> Mapping[str, Kept]:
    return {
        "trees": Kept("trees", quick, "cafe", "", "2026-01-02T03:04:05", 1, 1, {"rows": rows, "unit": "kg"})
    }


@pytest.mark.usefixtures("trees")
def test_figures_are_written_and_nothing_else() -> None:
    written = measured.rewrite(MARKED, run([61_600_000, 1_300.4, 12]))
    assert written == MARKED.replace("trees -->", "trees, 2026-01-02, sources cafe -->").replace(
        "59 M, 1,082 | 7.0 of 9", "62 M, 1,300 | 12.0 of 9"
    )
    assert measured.rewrite(written, run([61_600_000, 1_300.4, 12])) == written
    other = {"others": replace(run([])["trees"], experiment="others", result={"here": 5})}
    assert "| plums | 3 | 5 |" in measured.rewrite(written, other)


def test_a_comma_behind_a_figure_is_the_documents() -> None:
    assert [figure[0] for figure in measured.NUMBER.findall("690, 3,074, 1,234,567, 7.5, 12")] == [
        *("690", "3,074", "1,234,567", "7.5", "12")
    ]


@pytest.mark.usefixtures("trees")
def test_less_than_nothing_is_nothing() -> None:
    assert "| pears | 0 M, 0 | 0.0 of 9 |" in measured.rewrite(MARKED, run([-4e4, -0.3, -0.02]))


@pytest.mark.usefixtures("trees")
def test_those_of_quick_and_of_failed_runs_are_not() -> None:
    assert measured.rewrite(MARKED, run([1, 2, 3], quick=True)) == MARKED
    assert measured.rewrite(MARKED, {"trees": replace(run([])["trees"], result=None)}) == MARKED


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown", "line 3: nothing is known of the figures unknown"),
        ("no-row", "0 rows are called apples"),
        ("twice", "has 2 figures, not 3"),
        ("cells", "has 2 cells, not 1"),
        ("no-value", "the result has no rows[9]"),
        ("words", "the result has no unit"),
    ],
)
def test_what_does_not_fit_is_an_error(name: str, said: str) -> None:
    with pytest.raises(LabError, match=re.escape(said)):
        measured.rewrite(MARKED.replace(": trees", f": {name}"), run([1, 2, 3]))


@pytest.mark.usefixtures("trees")
def test_a_row_that_is_there_twice_is_an_error() -> None:
    text = MARKED.replace("| plums", "| pears | 1, 2 | 3 |\n| plums")
    with pytest.raises(LabError, match="2 rows are called pears"):
        measured.rewrite(text, run([1, 2, 3]))


@pytest.mark.usefixtures("trees")
def test_a_figure_that_has_moved_is_found() -> None:
    assert off(MARKED, run([59_300_000, 1_082.4, 7.2], quick=True)) == []
    for other in ([70_000_000, 1_082, 7], [59_000_000, 1_300, 7], [59_000_000, 1_082, 8]):
        assert len(off(MARKED, run(other, quick=True))) == 1
