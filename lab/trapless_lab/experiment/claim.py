# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demonstration's claims about a system: a few machines, some lines of a table, and a sentence.

Invariant: a claim boots one machine and runs only the steps that its line needs; a claim that does not hold
is an error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .experiment import Context

Facts = Mapping[str, float]
"""What machines showed, by names of the part's own."""


@dataclass(frozen=True)
class Claim:
    """One machine: ``seconds`` is what it takes on an idle host, for the estimate of what is left."""

    name: str
    seconds: int
    take: Callable[[Context], Facts]


@dataclass(frozen=True)
class Line:
    """Something that costs less than before; ``beside`` is another figure for comparison, if any."""

    measure: str
    before: float
    after: float
    beside: float | None = None


@dataclass(frozen=True)
class Heading:
    """The subject of a system's lines, and the titles of their columns."""

    what: str
    before: str
    after: str
    beside: str


@dataclass(frozen=True)
class Part:
    """A system's claims, and what follows from the facts of all of them together: lines, and a sentence each
    about what was gained and about what was not given up for it.
    """

    name: str
    heading: Heading
    claims: Sequence[Claim]
    lines: Callable[[Facts], Sequence[Line]]
    gained: Callable[[Facts], str]
    kept: Callable[[Facts], str]
