# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What docs/papers.md says of tables and figures: the paper's numbers, and how far each is.

Invariant: a row belongs to an item of the report if it links to the item's anchor in report/report.md;
nothing else connects the two.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

LINK = "report/report.md#"
_DRAWN = re.compile(
    r"\b(Figures?|Tables?) \d|\bfig:|\btab:|\btable \([ab]\)|\bplots?\b|\bdrawing\b|\"Limits\"|\d+/26\)|"
    r'"SPML: Limitations"'
)


@dataclass(frozen=True)
class Row:
    """A row of a table of docs/papers.md, in plain text; ``anchors`` are those that it links to."""

    item: str
    numbers: str
    state: str
    anchors: tuple[str, ...]

    @property
    def is_drawn(self) -> bool:
        """Whether the row is of a table or a figure."""
        return _DRAWN.search(self.item) is not None


@dataclass(frozen=True)
class Table:
    """A table of a document: its headings, and the cells of each row as they are parsed."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Token, ...], ...]


def rows(text: str) -> list[Row]:
    """Return every row of every table that has a state."""
    return [
        _row(table.headings, cells)
        for table in tables(text)
        if table.headings[-1] == "state" and len(table.headings) > 2
        for cells in table.rows
    ]


def _row(headings: tuple[str, ...], cells: tuple[Token, ...]) -> Row:
    numbers = next((plain(cells[at]) for at, name in enumerate(headings) if "number" in name), "")
    return Row(plain(cells[0]), numbers, plain(cells[-1]), tuple(_anchors(cells)))


def tables(text: str) -> list[Table]:
    """Return every table of a document."""
    found: list[Table] = []
    headings: list[str] = []
    body: list[tuple[Token, ...]] = []
    cells: list[Token] = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in pairwise(tokens):
        if before.type == "th_open":
            headings.append(plain(token))
        elif before.type == "td_open":
            cells.append(token)
        elif token.type == "tr_close" and cells:
            body.append(tuple(cells))
            cells = []
        elif token.type == "table_close":
            found.append(Table(tuple(headings), tuple(body)))
            headings, body = [], []
    return found


def plain(cell: Token) -> str:
    """Return a cell's text without marks."""
    return "".join(token.content for token in cell.children or () if token.type in ("text", "code_inline"))


def _anchors(cells: Sequence[Token]) -> Iterator[str]:
    for cell in cells:
        for token in cell.children or ():
            target = str(token.attrGet("href") or "")
            if token.type == "link_open" and target.startswith(LINK):
                yield target.removeprefix(LINK)
