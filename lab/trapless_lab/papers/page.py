# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The report's page, as HTML in one file and as Markdown with its pictures beside it.

Invariant: both are drawn from one model, which has nothing but what papers, docs/papers.md and kept results
have; so the same results give the same bytes. Nothing is fetched by who reads it. A result that is stale,
failed or missing is called so at each table that it made, and is never counted as one that held.
"""

import base64
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import jinja2

from .. import output
from . import charts, read
from .charts import OURS, THEIRS, Picture, shown_name
from .documented import Row
from .item import Comparison, Curves, Item, Listing, Number, Paper, View
from .kept import Kept
from .sources import Sources

HTML, MARKDOWN, FIGURES, RESULTS = "report.html", "report.md", "figures", "results"
# A table with more columns than this is transposed: a page is not that wide.
_WIDEST = 12
NOTHING = "–"  # noqa: RUF001


# The name of a picture; see _shown().
_FIGURE = re.compile(r".+-\d+-(theirs|ours)\.svg")


@dataclass(frozen=True)
class Table:
    """A table in words and numbers as they are read."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Shown:
    """A view, drawn; ``pictures``: file name -> picture."""

    title: str
    note: str
    experiment: str
    model: bool
    pictures: Mapping[str, Picture]
    table: Table | None


@dataclass(frozen=True)
class Made:
    """How, on what and by which sources something was made, and how far it is to be trusted."""

    experiment: str
    command: str
    text: str
    trouble: str = ""
    method: str = ""


@dataclass(frozen=True)
class Entry:
    """An item with all that is shown of it."""

    item: Item
    stated: Table
    views: Sequence[Shown]
    made: Sequence[Made]


@dataclass(frozen=True)
class Part:
    """A paper with its entries."""

    paper: Paper
    entries: Sequence[Entry]


@dataclass(frozen=True)
class Verdict:
    """How an experiment went."""

    experiment: str
    state: str
    held: int
    checks: int
    broken: Sequence[str]
    missed: Sequence[str]
    targets: int
    seconds: str

    @property
    def good(self) -> bool:
        """Whether it ran by these sources, and every check held."""
        return self.state == "ran" and not self.broken


@dataclass(frozen=True)
class Page:
    """All that both templates show."""

    quick: bool
    parts: Sequence[Part]
    verdicts: Sequence[Verdict]
    commit: str
    pictures: Mapping[str, Picture]
    left_out: Collection[str] = ()

    @property
    def good(self) -> bool:
        """Whether all ran, by these sources, and all checks held."""
        return all(verdict.good for verdict in self.verdicts)

    @property
    def sentence(self) -> str:
        """The outcome in a sentence."""
        good = sum(verdict.good for verdict in self.verdicts)
        held, checks = (
            sum(getattr(verdict, name) for verdict in self.verdicts) for name in ("held", "checks")
        )
        return (
            f"{good} of {len(self.verdicts)} experiments ran by the sources of this page and held; {held} of "
            f"{checks} checks held. A target that was missed is a result, not a failure."
        )

    @property
    def lacking(self) -> str:
        """How many experiments are not what was asked for, by the reason; nothing if all are."""
        states = Counter(re.split("[:(]", verdict.state)[0] for verdict in self.verdicts)
        found = [f"{count} {state}" for state, count in states.items() if state != "ran"]
        return f"Of {len(self.verdicts)} experiments: {', '.join(found)}." if found else ""

    @property
    def summary(self) -> list[list[str]]:
        """A row an experiment."""
        return [
            [
                verdict.experiment,
                verdict.state,
                f"{verdict.held} of {verdict.checks}",
                f"{verdict.targets - len(verdict.missed)} of {verdict.targets}",
                verdict.seconds,
            ]
            for verdict in self.verdicts
        ]

    @property
    def lists(self) -> list[tuple[str, list[str]]]:
        """What did not hold, by kind."""
        return [
            (
                "Experiments that did not run by these sources",
                [
                    f"{verdict.experiment}: {verdict.state}"
                    for verdict in self.verdicts
                    if verdict.state != "ran"
                ],
            ),
            (
                "Checks that did not hold",
                [f"{verdict.experiment}: {text}" for verdict in self.verdicts for text in verdict.broken],
            ),
            (
                "Targets that were missed",
                [f"{verdict.experiment}: {text}" for verdict in self.verdicts for text in verdict.missed],
            ),
        ]


def number(value: Any) -> str:
    """Return a value as it is read."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}" if abs(value) >= 10 else f"{value:.4g}"


@dataclass(frozen=True)
class Judge:
    """What there is, and what was asked for."""

    kept: Mapping[str, Kept]
    sources: Sources
    quick: bool
    left_out: Collection[str]

    def trouble(self, name: str) -> str:
        """Return why a result is not what was asked for, or nothing."""
        found = self.kept.get(name)
        if found is None:
            return "left out of a quick report" if name in self.left_out else "not run"
        if found.result is None:
            return f"FAILED: {found.failure.splitlines()[0] if found.failure else 'no reason is known'}"
        if not found.fresh(self.sources):
            return f"STALE: made by other sources ({found.commit}), not by those of this page"
        if found.quick != self.quick:
            return "made by a quick run" if found.quick else "made by a full run"
        return ""


def build(
    papers: Iterable[Paper],
    documented: Sequence[Row],
    kept: Mapping[str, Kept],
    sources: Sources,
    *,
    quick: bool,
    left_out: Collection[str] = (),
) -> Page:
    """Return the page of some papers' items; that nothing is kept of what is left out is no failure."""
    papers = tuple(papers)
    judge = Judge(kept, sources, quick, left_out)
    parts = [Part(paper, [_entry(item, documented, judge) for item in paper.items]) for paper in papers]
    names = [name for name in experiments(papers) if name not in left_out]
    pictures = {
        name: picture
        for part in parts
        for entry in part.entries
        for shown in entry.views
        for name, picture in shown.pictures.items()
    }
    verdicts = [_verdict(name, judge) for name in names]
    return Page(quick, parts, verdicts, sources.commit, pictures, left_out)


def experiments(papers: Iterable[Paper]) -> tuple[str, ...]:
    """Return the experiments that papers' items are made from, each once."""
    return tuple(dict.fromkeys(name for paper in papers for item in paper.items for name in item.experiments))


def _entry(item: Item, documented: Sequence[Row], judge: Judge) -> Entry:
    views = [_shown(item, at, view, judge.kept.get(view.experiment)) for at, view in enumerate(item.views, 1)]
    made = [_made(name, judge) for name in item.experiments]
    return Entry(item, _stated([row for row in documented if item.anchor in row.anchors]), views, made)


def _stated(rows: Sequence[Row]) -> Table:
    """Return what docs/papers.md has of an item: without the paper's numbers if there are none."""
    if all(row.numbers in ("", NOTHING) for row in rows):
        return Table(["in the paper", "here"], [[row.item, row.state] for row in rows])
    return Table(
        ["in the paper", "its numbers", "here"], [[row.item, row.numbers, row.state] for row in rows]
    )


def _shown(item: Item, at: int, view: View, found: Kept | None) -> Shown:
    result = (found.result if found else None) or {}
    pictures: list[Picture] = []
    if isinstance(view, Curves):
        pictures, table = charts.curves(view, result), None
    elif isinstance(view, Comparison):
        pictures = charts.bars(view, result) if view.chart else []
        table = _comparison(view, result)
    else:
        table = _listing(view, result)
    named = {
        f"{item.anchor}-{at}-{'theirs' if picture.whose == THEIRS else 'ours'}.svg": picture
        for picture in pictures
    }
    return Shown(view.title, view.note, view.experiment, _is_model(view, result), named, table)


def _is_model(view: View, result: Mapping[str, Any]) -> bool:
    parts = view.columns if isinstance(view, Comparison) else view.lines if isinstance(view, Curves) else ()
    # An experiment that has measurements beside its model has figures there, and marks what they are in.
    return result.get("model") is True or any(part.model for part in parts)


def _comparison(view: Comparison, result: Mapping[str, Any]) -> Table:
    names = read.rows(view, result)
    whole = next((column for column in view.columns if column.name == view.of), None)
    headings, columns = [""], []
    for column in view.columns:
        sides = (
            (THEIRS, view.their_unit or view.unit, read.theirs, column.name),
            (OURS, view.unit, read.ours, shown_name(column.name, model=column.model)),
        )
        for whose, unit, get, name in sides:
            values = [get(column, row, result) for row in names]
            if all(value is None for value in values):
                continue
            shares = [
                None if whole in (None, column) else read.percent(value, get(whole, row, result))
                for value, row in zip(values, names, strict=True)
            ]
            headings.append(f"{name}: {whose} ({column.unit or unit})")
            columns.append([_cell(value, share) for value, share in zip(values, shares, strict=True)])
    rows = [[label, *(column[at] for column in columns)] for at, label in enumerate(names.values())]
    rows = [row for row in rows if any(cell != NOTHING for cell in row[1:])]
    if len(headings) > _WIDEST:
        headings, *rows = ([*cells] for cells in zip(headings, *rows, strict=True))
    return Table(headings, rows)


def _cell(value: Number | None, share: float | None) -> str:
    return number(value) if share is None else f"{number(value)} ({share:.0f} %)"


def _listing(view: Listing, result: Mapping[str, Any]) -> Table:
    rows = read.listed(view, result)
    used = [at for at in range(len(view.columns)) if any(row[at] is not None for row in rows)]
    headings = list(view.columns.values())
    return Table([headings[at] for at in used], [[number(row[at]) for at in used] for row in rows])


def _made(name: str, judge: Judge) -> Made:
    found, trouble = judge.kept.get(name), judge.trouble(name)
    if found is None or found.result is None:
        return Made(name, f"trapless-lab run {name}", "", trouble)
    ran = f"{found.began[:10]}, {found.seconds:.0f} s, sources {found.commit} (digest {found.digest})"
    text = f"{ran}; {_machine(found.result['machine'])}"
    return Made(name, found.command, text, trouble, str(found.result["method"]))


def _machine(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(
        f"{key.replace('_', ' ')} {value}"
        for key, value in facts.items()
        if isinstance(value, str | int | float)
    )
    booted = Counter(
        f"{one['name']}: {one['cpu']}, {one['cpus']} CPU{'s' if one['cpus'] > 1 else ''}, "
        f"{one['memory_mib']} MiB" + (", icount" if one.get("icount") else "")
        for one in facts.get("machines", ())
    )
    machines = "; ".join(f"{one} ({times} times)" if times > 1 else one for one, times in booted.items())
    return "; ".join(filter(None, (machines, versions)))


def _verdict(name: str, judge: Judge) -> Verdict:
    found, trouble = judge.kept.get(name), judge.trouble(name)
    result = (found.result if found else None) or {}
    checks, targets = result.get("checks", ()), result.get("targets", ())
    return Verdict(
        name,
        trouble or "ran",
        sum(check["holds"] for check in checks),
        len(checks),
        [f"{check['name']}: {check['text']}" for check in checks if not check["holds"]],
        [
            f"{target['name']}: {number(target['measured'])}, at most {number(target['at_most'])} wanted"
            for target in targets
            if not target["reached"]
        ],
        len(targets),
        f"{found.seconds:,.0f}" if found else NOTHING,
    )


def _cell_of_markdown(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def render(page: Page) -> dict[str, bytes]:
    """Return every file of the report by its name."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trapless_lab.papers"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = _cell_of_markdown
    environment.filters["inline"] = lambda picture: (
        "data:image/svg+xml;base64," + base64.b64encode(picture.svg).decode()
    )
    names = {"page": page, "figures": FIGURES, "ours": OURS, "theirs": THEIRS}
    files = {name: environment.get_template(name).render(**names).encode() for name in (HTML, MARKDOWN)}
    return files | {f"{FIGURES}/{name}": picture.svg for name, picture in page.pictures.items()}


def write(page: Page, folder: Path) -> None:
    """Write the report into a folder, with one for the results that were drawn, and remove the figures of an
    earlier report. Other files of these folders are not touched.
    """
    for name in (FIGURES, RESULTS):
        output.require_folder(folder / name)
    for name, content in render(page).items():
        output.write(folder / name, content)
    for old in (folder / FIGURES).iterdir():
        if _FIGURE.fullmatch(old.name) and old.name not in page.pictures:
            old.unlink()
