# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plots, a thin layer over matplotlib.

Invariant: nothing is drawn on a display, and a plot shows only numbers that the JSON has too.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import output


def lines(
    target: Path, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x: str, y: str, title: str
) -> None:
    """Draw one line for each name -> (x values, y values)."""
    figure = _figure()
    axes = figure.add_subplot()
    for name, (xs, ys) in series.items():
        axes.plot(xs, ys, label=name, linewidth=1.5)
    axes.set(xlabel=x, ylabel=y, title=title, ylim=(0, None))
    axes.legend()
    _save(target, figure)


def bars(
    target: Path, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, y: str, title: str
) -> None:
    """Draw the series side by side in each group."""
    figure = _figure()
    axes = figure.add_subplot()
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [group + (i - (len(series) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, values, width, label=name)
    axes.set(ylabel=y, title=title)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend()
    _save(target, figure)


def _figure() -> Figure:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(target: Path, figure: Figure) -> None:
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    output.require_folder(target.parent)
    output.write(target, drawn.getvalue())
