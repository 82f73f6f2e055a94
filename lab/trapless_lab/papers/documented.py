# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What docs/papers.md says of tables and figures: the paper's numbers, and how far each is.

Invariant: a row belongs to an item of the report if it links to the item's anchor in report/report.md;
nothing else connects the two.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    def columns(self) -> tuple[str, str, str]:
        """Return what the report shows of it."""
        return self.item, self.numbers, self.state

    @property
    def is_drawn(self) -> bool:
        """Whether the row is of a table or a figure."""
        return _DRAWN.search(self.item) is not None


def rows(text: str) -> list[Row]:
    """Return every row of every table that has a state."""
    return list(_rows(MarkdownIt("commonmark").enable("table").parse(text)))


def _rows(tokens: Sequence[Token]) -> Iterator[Row]:
    headings: list[str] = []
    cells: list[Token] = []
    for token, before in zip(tokens[1:], tokens, strict=False):
        if token.type == "thead_open":
            headings = []
        elif token.type == "inline" and before.type == "th_open":
            headings.append(_plain(token))
        elif token.type == "inline" and before.type == "td_open":
            cells.append(token)
        elif token.type == "tr_close" and cells:
            if headings[-1] == "state" and len(headings) > 2:
                numbers = next((i for i, name in enumerate(headings) if "number" in name), None)
                yield Row(
                    _plain(cells[0]),
                    _plain(cells[numbers]) if numbers is not None else "",
                    _plain(cells[-1]),
                    tuple(_anchors(cells)),
                )
            cells = []


def _plain(cell: Token) -> str:
    return "".join(token.content for token in cell.children or () if token.type in ("text", "code_inline"))


def _anchors(cells: Sequence[Token]) -> Iterator[str]:
    for cell in cells:
        for token in cell.children or ():
            target = str(token.attrGet("href") or "")
            if token.type == "link_open" and target.startswith(LINK):
                yield target.removeprefix(LINK)
