# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads what an item shows out of a result.

Invariants: nothing is computed but percentages, products and quotients of what was read; a value that is not
there, or is of another kind than what is shown, is None. So a result that other sources made is drawn
without what it lacks.
"""

from collections.abc import Mapping
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions, signature

from .item import Column, Comparison, Line, Listing, Number, Points

Json = Mapping[str, Any]


_NUMBER: Any = {"types": ["number", "null"]}


class _Functions(Functions):
    """What expressions may call beyond JMESPath's own functions: null if a part is null."""

    @signature(_NUMBER, _NUMBER)
    def _func_product(self, a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a * b

    @signature(_NUMBER, _NUMBER)
    def _func_quotient(self, a: float | None, b: float | None) -> float | None:
        return None if a is None or not b else a / b


_OPTIONS = jmespath.Options(custom_functions=_Functions())


def value(expression: str, result: Json) -> Any:
    """Return what a JMESPath expression finds; nothing in no result. It may call product() and quotient()."""
    try:
        return jmespath.search(expression, result, _OPTIONS) if result else None
    except JMESPathError:  # a function is given what it does not take
        return None


def _list(expression: str, result: Json) -> list[Any]:
    found = value(expression, result)
    return found if isinstance(found, list) else []


def _number(found: object) -> float | None:
    return found if isinstance(found, float | int) and not isinstance(found, bool) else None


def _cell(found: object) -> Number | None:
    return found if isinstance(found, str) else _number(found)


def rows(view: Comparison, result: Json) -> Mapping[str, str]:
    """Return the names of the rows, and what they are called."""
    if not isinstance(view.rows, str):
        return view.rows
    return {name: name for name in dict.fromkeys(map(str, _list(view.rows, result)))}


def _one(expression: str, row: str, result: Json) -> Number | None:
    quoted = row.replace("'", "\\'")
    return _cell(value(expression.replace("{row}", quoted), result)) if expression else None


def theirs(column: Column, row: str, result: Json) -> Number | None:
    """Return the paper's value."""
    if isinstance(column.theirs, str):
        return _one(column.theirs, row, result)
    return column.theirs.get(row)


def ours(column: Column, row: str, result: Json) -> Number | None:
    """Return the measured value."""
    found = _one(column.ours, row, result)
    if not column.per:
        return found
    return percent(found, _one(column.per, row, result))


def percent(part: Number | None, whole: Number | None) -> float | None:
    """Return a part's percentage, if both are numbers."""
    if isinstance(part, str) or isinstance(whole, str) or part is None or not whole:
        return None
    return 100 * part / whole


def points(line: Line, result: Json) -> Points:
    """Return the measured points of a line, without those that have no value."""
    if line.ours is None:
        return ()
    xs, ys = (list(map(_number, _list(expression, result))) for expression in line.ours)
    if len(xs) != len(ys):
        return ()
    return [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]


def listed(view: Listing, result: Json) -> list[list[Number | None]]:
    """Return the cells of each row."""
    rows = (row for row in _list(view.rows, result) if isinstance(row, dict))
    return [[_worded(view, row.get(key)) for key in view.columns] for row in rows]


def _worded(view: Listing, cell: object) -> Number | None:
    if isinstance(cell, str):
        return view.words.get(cell, cell)
    return cell if isinstance(cell, float | int) else None
