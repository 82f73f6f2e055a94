# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The charts of a view: theirs and ours, with the same axes.

Invariant: where both are in one unit, or both are percentages of the same column, their axes have the same
range; where they are not, each says its own unit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from textwrap import fill

from ..experiment.plots import PAGE, Album
from . import read
from .item import Column, Comparison, Curves, Number, Points
from .read import Json

_Get = Callable[[Column, str], Number | None]

THEIRS, OURS = "the paper", "trapless"
_ABOVE = 1.05


@dataclass(frozen=True)
class Picture:
    """A chart: whose it is, and what somebody reads who does not see it."""

    whose: str
    svg: bytes
    alt: str


def shown_name(name: str, *, model: bool) -> str:
    """Return how a column or a line of ours is called."""
    return f"{name} (model)" if model else name


def bars(view: Comparison, result: Json) -> list[Picture]:
    """Draw what is a number in a comparison."""
    names = read.rows(view, result)
    theirs = _columns(view, names, lambda column, row: read.theirs(column, row, result))
    ours = _columns(view, names, lambda column, row: read.ours(column, row, result))
    one_unit = bool(view.of) or not view.their_unit
    unit = f"% of {view.of}" if view.of else view.unit
    their_unit = f"% of {view.of}" if view.of else view.their_unit or view.unit
    drawn = []
    top = _top((theirs, ours), stacked=view.stacked) if one_unit else None
    for whose, found, y in ((THEIRS, theirs, their_unit), (OURS, ours, unit)):
        if not found:
            continue
        album = Album(PAGE)
        labels = {
            column.name: shown_name(column.name, model=column.model and whose == OURS)
            for column in view.columns
        }
        series = {labels[name]: values for name, values in found.items()}
        named = _title(view.title, whose)
        # A column has one colour on both sides.
        colors = {label: at for at, label in enumerate(labels.values())}
        groups = list(names.values())
        album.bars("x", groups, series, y=y, title=named, top=top, stacked=view.stacked, colors=colors)
        drawn += _pictures(album, whose, f"{view.title}, {y}, bars: {whose}")
    return drawn


def _columns(view: Comparison, names: Mapping[str, str], get: _Get) -> dict[str, list[float]]:
    """Return the numbers by column, those without any left out; nan where there is none."""
    whole = next((column for column in view.columns if column.name == view.of), None)
    found = {}
    for column in view.columns:
        values = [get(column, row) for row in names]
        if whole is not None:
            values = [read.percent(part, get(whole, row)) for part, row in zip(values, names, strict=True)]
        numbers = [nan if isinstance(one, str) or one is None else float(one) for one in values]
        if any(one == one for one in numbers):
            found[column.name] = numbers
    return {} if set(found) <= {view.of} else found


def _top(both: Sequence[Mapping[str, Sequence[float]]], *, stacked: bool) -> float:
    tops = [0.0]
    for found in both:
        if stacked:
            tops += [sum(v for v in values if v == v) for values in zip(*found.values(), strict=True)]
        else:
            tops += [v for values in found.values() for v in values if v == v]
    return max(tops) * _ABOVE


def curves(view: Curves, result: Json) -> list[Picture]:
    """Draw both sides' lines."""
    theirs = {line.name: line.theirs for line in view.lines if line.theirs}
    ours = {
        shown_name(line.name, model=line.model): found
        for line in view.lines
        if (found := read.points(line, result))
    }
    drawn = []
    for whose, lines, other, x, y in (
        (THEIRS, theirs, ours, view.their_x or view.x, view.their_y or view.y),
        (OURS, ours, theirs, view.x, view.y),
    ):
        # What is on one axis of both ends at the same place.
        top = max([0, *_coordinates(1, lines, {} if view.their_y else other)]) * _ABOVE
        sides = None if view.their_x or not other else _sides(_coordinates(0, lines, other))
        drawn += _lines(view.title, whose, lines, x, y, top, sides)
    return drawn


def _coordinates(axis: int, *sides: Mapping[str, Points]) -> list[float]:
    return [point[axis] for lines in sides for points in lines.values() for point in points]


def _sides(xs: Sequence[float]) -> tuple[float, float]:
    """Return where an axis of such values begins and ends."""
    beside = (max(xs) - min(xs)) * (_ABOVE - 1)
    return min(xs) - beside, max(xs) + beside


def _title(what: str, whose: str) -> str:
    return f"{fill(what, 48)}\n{whose}"


def _lines(
    title: str,
    whose: str,
    lines: Mapping[str, Points],
    x: str,
    y: str,
    top: float,
    sides: tuple[float, float] | None,
) -> list[Picture]:
    if not lines:
        return []
    album = Album(PAGE)
    series = {name: ([x for x, _ in points], [y for _, y in points]) for name, points in lines.items()}
    album.lines("x", series, x=x, y=y, title=_title(title, whose), top=top, sides=sides)
    return _pictures(album, whose, f"{title}, {y} over {x}: {whose}")


def _pictures(album: Album, whose: str, alt: str) -> list[Picture]:
    return [Picture(whose, svg, alt) for svg in album.drawn.values()]
