# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results on the terminal and as JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from .. import output
from .experiment import BeforeAfter, Check, Experiment, Result, Row, Target

# A table with more columns than this is transposed, unless that makes it wider.
_WIDEST = 5
_ANY_WIDTH = 10_000


def as_json(experiment: Experiment, result: Result) -> dict[str, Any]:
    """Return the object that ``--json`` writes."""
    fixed = {
        "experiment": experiment.name,
        "unit": result.unit,
        "method": result.method,
        "machine": dict(result.machine),
        "rows": [dict(row) for row in result.rows],
        "paper": [dict(row) for row in result.paper],
        "checks": [{"name": c.name, "holds": c.holds, "text": c.text} for c in result.checks],
        "targets": [
            {"name": t.name, "measured": t.measured, "at_most": t.at_most, "reached": t.reached}
            | ({"reason": t.reason} if t.reason and not t.reached else {})
            for t in result.targets
        ],
    }
    if clash := fixed.keys() & result.keys.keys():
        raise ValueError(f"{experiment.name} redefines {sorted(clash)}")
    return fixed | dict(result.keys)


def listed(experiments: Iterable[Experiment]) -> list[dict[str, Any]]:
    """Return what ``list --json`` prints."""
    return [
        {
            "name": e.name,
            "accelerator": e.accelerator,
            "title": e.title,
            "reproduces": e.reproduces,
            "minutes": e.minutes,
        }
        for e in experiments
    ]


def write(target: Path, value: dict[str, Any]) -> None:
    """Write ``value`` as JSON, or keep it elsewhere if that cannot be done."""
    output.write_or_rescue(target, (json.dumps(value, indent=2) + "\n").encode())


def show(console: Console, experiment: Experiment, result: Result) -> None:
    """Print a result for a person."""
    _print_whole(console, _table(f"{experiment.title} ({result.unit})", result.rows))
    if result.paper:
        _print_whole(console, _table(f"In the paper: {experiment.reproduces}", result.paper))
    if result.summary:
        _print_whole(console, _summary(result.summary))
    show_checks(console, result.checks)
    for target in result.targets:
        console.print(target_line(target), highlight=False, soft_wrap=True)


def _summary(lines: Sequence[BeforeAfter]) -> Table:
    table = Table("in short", title_justify="left")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    table.add_column("for comparison")
    for line in lines:
        table.add_row(*map(escape, (line.measure, line.before, line.after, line.reference)))
    return table


def _print_whole(console: Console, table: Table) -> None:
    """Print a table at its own width: a narrow terminal may wrap it, but no figure is cut."""
    anything = console.options.update(max_width=_ANY_WIDTH)
    width = max(console.width, Measurement.get(console, anything, table).maximum)
    wide = output.Terminal(file=console.file, width=width, force_terminal=console.is_terminal)
    wide.print(table, crop=False)


def show_checks(console: Console, checks: Iterable[Check]) -> None:
    """Print one line a check."""
    for check in checks:
        verdict = "[green]holds[/]" if check.holds else "[red]FAILS[/]"
        console.print(f"{verdict}  {escape(f'{check.name}: {check.text}')}", highlight=False, soft_wrap=True)


def target_line(target: Target) -> str:
    """Return a target as it is printed: a missed one is yellow."""
    verdict = "[green]reached[/]" if target.reached else "[yellow]MISSED[/]"
    why = f" ({target.reason})" if target.reason and not target.reached else ""
    found, wanted = _cell(target.measured), _cell(target.at_most)
    return f"{verdict}  {escape(f'target {target.name}: {found}, at most {wanted} wanted{why}')}"


def _table(title: str, rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    if _WIDEST < len(columns) > len(rows):
        cells = [list(column) for column in zip(*cells, strict=True)]
    table = Table(title=escape(title), title_justify="left")
    for i, heading in enumerate(cells[0]):
        table.add_column(escape(heading), justify="right" if i else "left")
    for line in cells[1:]:
        table.add_row(*map(escape, line))
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
