# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plots are for people: words, markers, a legend beside the data, nothing empty, no two of one title."""

import ast
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import trapless_lab
from trapless_lab.errors import LabError
from trapless_lab.experiment import plots
from trapless_lab.experiment.plots import Album, words


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is drawn."""
    kept: list[Figure] = []
    picture = plots._picture

    def keep(figure: Figure, kind: str) -> bytes:
        kept.append(figure)
        return picture(figure, kind)

    monkeypatch.setattr(plots, "_picture", keep)
    return kept


def drawn(figures: list[Figure]) -> Axes:
    (figure,) = figures
    (axes,) = figure.axes
    return axes


def test_they_are_saved_as_png(tmp_path: Path) -> None:
    album = Album()
    album.lines("l.png", {"a": ([1, 2], [3, 4])}, x="x", y="y", title="t")
    album.bars("b.png", ["g", "h"], {"a": [1, 2], "b": [2, 3]}, y="y", title="t")
    album.save(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"l.png", "b.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "new").iterdir())


def test_one_that_cannot_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to("/dev/full")
    album = Album()
    for name in ("a.png", "b.png"):
        album.lines(name, {"a": ([1, 2], [3, 4])}, x="x", y="y", title="t")
    with pytest.raises(LabError, match=r"a\.png: No space left"):
        album.save(tmp_path)
    assert (tmp_path / "b.png").exists()


def test_an_empty_picture_is_not_drawn() -> None:
    album = Album()
    album.lines("one.png", {"a": ([64], [3]), "b": ([64], [4])}, x="MiB watched", y="y", title="t")
    album.lines("none.png", {"a": ([], [])}, x="MiB", y="y", title="t")
    album.bars("zero.png", ["g"], {"a": [0]}, y="exits", title="t")
    assert not album.drawn
    assert album.left_out["one.png"] == "there is one value only of: MiB watched"
    assert set(album.left_out) == {"one.png", "none.png", "zero.png"}


def test_words_are_those_of_people(figures: list[Figure]) -> None:
    assert words("bare") == "bare metal" and words("fork_exec, boosted") == "fork + exec, with trapless"
    assert words("some_new_name") == "some new name"
    Album().bars("b.png", ["fork_exit"], {"relaxed_stock": [1], "boosted": [2]}, y="y", title="t")
    axes = drawn(figures)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fork + exit"]
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["stock, relaxed", "with trapless"]


def test_a_legend_is_beside_the_data(figures: list[Figure]) -> None:
    series = {f"a long name of a series {i}": ([1, 2], [i, i]) for i in range(6)}
    Album().lines("l.png", series, x="x", y="y", title="t")
    (figure,) = figures
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 > drawn(figures).get_window_extent().x1
    # The control: where matplotlib puts it otherwise.
    inside = drawn(figures).legend(handles=legend.legend_handles)
    figure.savefig(BytesIO())
    assert inside.get_window_extent().x0 < drawn(figures).get_window_extent().x1


def test_lines_that_coincide_are_told_apart(figures: list[Figure]) -> None:
    same = ([1, 2, 3], [5, 5, 5])
    Album().lines("l.png", {"a": same, "b": same, "c": same}, x="x", y="y", title="t")
    lines = drawn(figures).get_lines()
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3
    assert len({line.get_marker() for line in lines}) == 3
    assert len({line.get_linestyle() for line in lines}) == 3


def test_large_numbers_are_written_out(figures: list[Figure]) -> None:
    Album().lines("l.png", {"a": ([1, 2], [1, 12_500_000])}, x="x", y="y", title="t")
    labels = [label.get_text() for label in drawn(figures).get_yticklabels()]
    assert "10,000,000" in labels and not [label for label in labels if "e+" in label]


def test_many_points_have_no_markers(figures: list[Figure]) -> None:
    Album().lines("l.png", {"a": (range(500), range(500))}, x="x", y="y", title="t")
    (line,) = drawn(figures).get_lines()
    assert line.get_marker() == "" and not figures[0].legends


def titles() -> list[str]:
    """Return the title of each plot in the lab's sources."""
    found = []
    for path in Path(trapless_lab.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".lines", ".bars")):
                found += [ast.unparse(word.value) for word in node.keywords if word.arg == "title"]
    return found


def test_no_two_have_the_same_title() -> None:
    counted = Counter(titles())
    assert len(counted) > 15
    assert [title for title, times in counted.items() if times > 1] == []
