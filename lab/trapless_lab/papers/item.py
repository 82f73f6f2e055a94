# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the report is made of: papers, their tables and figures, and what is shown of each.

Invariant: an item is data. It names the experiment, and what of its JSON is shown, by JMESPath expressions;
what cannot be read of a result is left empty, never guessed. Items have no code of their own, and no number
of ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Number = float | int | str
"""A value as a paper prints it."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Column:
    """Something that was measured of each row, by the paper and here.

    ``theirs`` and ``ours`` are expressions on the experiment's JSON, with {row} for the row's name, or, for
    theirs, the numbers themselves by row. With ``per``, another expression, ours is a percentage of that.
    """

    name: str
    theirs: str | Mapping[str, Number] = ""
    ours: str = ""
    per: str = ""
    model: bool = False
    """Whether ours is a model's."""
    unit: str = ""
    """Of theirs and of ours, if it is not the table's."""


@dataclass(frozen=True)
class Comparison:
    """A table, and two charts with the same axes: theirs and ours.

    ``rows``: name -> what it is called; or an expression that gives the names. With ``of``, the name of a
    column, every figure is also shown, and drawn, as a percentage of that column: so results in different
    units have one axis.
    """

    experiment: str
    title: str
    rows: Mapping[str, str] | str
    columns: tuple[Column, ...]
    unit: str
    """Of ours."""
    their_unit: str = ""
    """If it is another."""
    of: str = ""
    chart: bool = True
    stacked: bool = False
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a chart: x and y of ours are expressions; theirs are points that the paper's text gives."""

    name: str
    ours: tuple[str, str] | None = None
    theirs: Points = ()
    model: bool = False


@dataclass(frozen=True)
class Curves:
    """Two charts with the same quantities on their axes."""

    experiment: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    note: str = ""
    their_x: str = ""
    """If the paper's axis has another quantity or unit; the same for y."""
    their_y: str = ""


@dataclass(frozen=True)
class Listing:
    """Rows of a result as they are: key -> heading; ``words`` are for cells that a person would not
    understand.
    """

    experiment: str
    title: str
    rows: str
    columns: Mapping[str, str]
    note: str = ""
    words: Mapping[str, str] = field(default_factory=dict)


View = Comparison | Curves | Listing


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper, or several that are one.

    ``anchor`` is what docs/papers.md links to; the paper's numbers and how far the item is are read there.
    """

    anchor: str
    name: str
    title: str
    views: tuple[View, ...] = ()
    note: str = ""
    drawing: str = ""
    """Of a picture that shows no measurement: what it shows here, or why nothing."""

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that it is made from, each once."""
        return tuple(dict.fromkeys(view.experiment for view in self.views))


@dataclass(frozen=True)
class Paper:
    """A paper: ``system`` is the part of trapless that takes it up."""

    system: str
    title: str
    about: str
    items: tuple[Item, ...]
