# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plots, a thin layer over matplotlib.

Invariant: nothing is drawn on a display, and a plot shows only numbers that the JSON has too. A run draws
into an album, which is saved when the result has been shown: a full disk costs a picture, never the result.

For people: words instead of the names that programs use (``words``), a marker at each of few points, the
legend beside the data, lines that coincide told apart, and no picture of a single size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import output
from ..errors import LabError

_WORDS = {
    "bare": "bare metal",
    "stock": "stock",
    "boosted": "with trapless",
    "piboost": "with PiBooster alone",
    "payload": "the payload alone",
    "relaxed_stock": "stock, relaxed",
    "relaxed_boosted": "with trapless, relaxed",
    **{
        f"{key}_{state}": f"{words}, {name}"
        for key, name in (("epyc", "EPYC"), ("skylake", "Skylake"))
        for state, words in (("bare", "bare metal"), ("stock", "stock"), ("boosted", "with trapless"))
    },
    "pvh": "PVH",
    "fork_exit": "fork + exit",
    "fork_exec": "fork + exec",
    "fork_sh": "fork + shell",
    "redirty": "writing every page again",
    "base": "plain KVM",
    "inplace": "in place",
    "singles": "in place, single instructions",
    "pv": "paravirtual",
    "pv_fast": "paravirtual, short exits",
    "allocate": "made",
    "free": "given back",
    "seg_desc": "segment descriptors",
    "l1": "page table, level 1",
    "l2": "page table, level 2",
    "l3": "page table, level 3",
    "l4": "page table, level 4",
}

# With more points than this a line is dense enough without markers.
_MARKED = 40
# The first is the widest, so that a line which another covers is still seen on both sides of it.
_WIDTHS = (4.5, 3.0, 1.8, 1.0)
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", "-.", ":")
_COLORS = [matplotlib.colormaps["tab20"](i) for i in range(20)]
# Of a legend or of a group's name, in characters.
_WIDE = 14


@dataclass(frozen=True)
class Format:
    """The size of an album's pictures in inches, what they are, and where the legend stands."""

    width: float
    height: float
    kind: str
    legend: Literal["outside right upper", "outside lower center"]


FILES = Format(9, 4.5, "png", "outside right upper")
PAGE = Format(5.4, 4.2, "svg", "outside lower center")
"""Half of a wide page, or all of a narrow one."""


def words(name: str) -> str:
    """Return what a person calls it; a list is translated item by item."""
    return ", ".join(_WORDS.get(part, part.replace("_", " ")) for part in name.split(", "))


class Album:
    """The plots of a run, by the name of their file, and the reasons for those that were not drawn."""

    def __init__(self, form: Format = FILES) -> None:
        self.drawn: dict[str, bytes] = {}
        self.left_out: dict[str, str] = {}
        self._format = form

    def lines(
        self,
        name: str,
        series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
        *,
        x: str,
        y: str,
        title: str,
        top: float | None = None,
        sides: tuple[float, float] | None = None,
    ) -> None:
        """Draw one line for each name -> (x values, y values); ``top``: where the axis ends;
        ``sides``: where the other begins and ends.
        """
        if all(len(set(xs)) < 2 for xs, _ in series.values()):
            self.left_out[name] = f"there is one value only of: {x}"
            return
        figure = self._figure()
        axes = figure.add_subplot()
        for i, (label, (xs, ys)) in enumerate(series.items()):
            few = len(xs) <= _MARKED
            width = _WIDTHS[i % len(_WIDTHS)]
            axes.plot(
                xs,
                ys,
                label=words(label),
                linewidth=width if few else 1.5,
                linestyle=_DASHES[i % len(_DASHES)],
                marker=_MARKERS[i % len(_MARKERS)] if few else "",
                markersize=width + 4,
            )
        axes.set(xlabel=x, ylabel=y, title=title, ylim=(0, top))
        if sides is not None:
            axes.set_xlim(sides)
        self.drawn[name] = self._picture(figure, len(series))

    def bars(
        self,
        name: str,
        groups: Sequence[str],
        series: Mapping[str, Sequence[float]],
        *,
        y: str,
        title: str,
        top: float | None = None,
        stacked: bool = False,
        colors: Mapping[str, int] | None = None,
    ) -> None:
        """Draw the series side by side in each group, or one upon the other; nan is no bar.

        ``colors`` has the place of each series' colour, for pictures that have some of the same series.
        """
        if not groups or not any(any(values) for values in series.values()):
            self.left_out[name] = f"everything is 0: {y}"
            return
        figure = self._figure()
        axes = figure.add_subplot()
        width = 0.8 / (1 if stacked else len(series))
        below = [0.0] * len(groups)
        for i, (label, values) in enumerate(series.items()):
            aside = 0.0 if stacked else (i - (len(series) - 1) / 2) * width
            place = i if colors is None else colors[label]
            color = _COLORS[place] if max(len(series), place + 1) > 10 else f"C{place}"
            places = [group + aside for group in range(len(groups))]
            axes.bar(places, values, width, below if stacked else 0, label=words(label), color=color)
            if stacked:
                below = [base + value for base, value in zip(below, values, strict=True)]
        axes.set(ylabel=y, title=title, xlim=(-0.6, len(groups) - 0.4))
        if top is not None:
            axes.set_ylim(top=top)
        names = [words(group) for group in groups]
        crowded = max(map(len, names)) * len(names) > 6 * _WIDE * self._format.width / FILES.width
        axes.set_xticks(
            range(len(groups)),
            names,
            rotation=30 if crowded else 0,
            ha="right" if crowded else "center",
            rotation_mode="anchor" if crowded else "default",
        )
        self.drawn[name] = self._picture(figure, len(series))

    def _figure(self) -> Figure:
        figure = Figure(figsize=(self._format.width, self._format.height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    def _picture(self, figure: Figure, series: int) -> bytes:
        """Put the legend beside the data, for one series needs none, and return the file."""
        if series > 1:
            columns = 1 if self._format.legend == FILES.legend else 2 if series < 7 else 4
            figure.legend(loc=self._format.legend, markerscale=0.8, ncols=columns)
        (axes,) = figure.axes
        axes.grid(axis="y", alpha=0.3)
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")
        return _picture(figure, self._format.kind)

    def save(self, folder: Path) -> None:
        """Write every plot that can be written; then say which could not."""
        failed = []
        output.require_folder(folder)
        for name, picture in self.drawn.items():
            try:
                output.write(folder / name, picture)
            except LabError as error:
                failed.append(str(error))
        if failed:
            raise LabError("; ".join(failed))


def _picture(figure: Figure, kind: str) -> bytes:
    drawn = BytesIO()
    # Text as text, in the font of who reads it; and nothing in a file that differs from run to run. Each text
    # names its fonts, so of the default's ten there is only the one that it was laid out in.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "trapless", "font.sans-serif": ["DejaVu Sans"]}
    ):
        figure.savefig(drawn, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return drawn.getvalue()
