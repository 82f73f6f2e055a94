# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results on the terminal and as JSON.

Invariant: a JSON file is either the whole new result or what was there before.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .errors import LabError
from .experiment import Experiment, Result, Row

# A table with more columns than this is turned on its side.
_WIDEST = 5


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
    }
    if clash := fixed.keys() & result.keys.keys():
        raise ValueError(f"{experiment.name} redefines {sorted(clash)}")
    return fixed | dict(result.keys)


def require_writable(target: Path) -> None:
    """Refuse a path that ``write`` could not write, before an experiment runs for it."""
    if target.is_dir():
        raise LabError(f"{target} is a directory, not a file to write JSON to")
    if not target.parent.is_dir():
        raise LabError(f"cannot write {target}: {target.parent} is not a directory")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise LabError(f"cannot write {target}: {error.strerror}") from error


def write(target: Path, value: dict[str, Any]) -> None:
    """Write ``value`` as JSON, atomically."""
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        temporary = Path(file.name)
        try:
            json.dump(value, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)  # a result is for others to read; the default of temporaries is not
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def show(console: Console, experiment: Experiment, result: Result) -> None:
    """Print a result for a person."""
    console.print(_table(f"{experiment.title} ({result.unit})", result.rows))
    if result.paper:
        console.print(_table(f"In the paper: {experiment.reproduces}", result.paper))
    for check in result.checks:
        verdict = "[green]holds[/]" if check.holds else "[red]FAILS[/]"
        console.print(f"{verdict}  {check.name}: {check.text}", highlight=False, soft_wrap=True)


def _table(title: str, rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    if len(columns) > _WIDEST:
        cells = [list(column) for column in zip(*cells, strict=True)]
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(cells[0]):
        table.add_column(heading, justify="right" if i else "left")
    for line in cells[1:]:
        table.add_row(*line)
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
