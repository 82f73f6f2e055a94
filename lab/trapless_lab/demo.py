# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demonstration: what trapless is for, one machine a claim, two machines at a time, and one table.

Invariant: all figures of the table were measured by this run. A claim that fails is named and makes the run
fail, after all others have run; its system then has no lines. There is some output at least every ten
seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table

from .errors import LabError
from .experiment.claim import Claim, Facts, Line, Part
from .experiment.experiment import Context
from .overall import Overall, Unit, each_done

MACHINES_AT_A_TIME = 2


@dataclass
class Outcome:
    """A part's facts, and its failed claims."""

    part: Part
    facts: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run(parts: Sequence[Part], shown: Overall) -> list[Outcome]:
    """Run every claim of some parts."""
    outcomes = [Outcome(part) for part in parts]
    units = {
        (at, claim.name): shown.add(claim.name, claim.seconds)
        for at, outcome in enumerate(outcomes)
        for claim in outcome.part.claims
    }
    claims: dict[tuple[int, str], Claim] = {
        (at, claim.name): claim for at, outcome in enumerate(outcomes) for claim in outcome.part.claims
    }
    work: dict[tuple[int, str], Callable[[], Facts]] = {
        key: partial(_take, claim, units[key]) for key, claim in claims.items()
    }
    for (at, name), future in each_done(work, shown, MACHINES_AT_A_TIME):
        try:
            outcomes[at].facts |= future.result()
        except LabError as error:
            outcomes[at].failed[name] = str(error)
    return outcomes


def _take(claim: Claim, unit: Unit) -> Facts:
    with unit:
        return claim.take(Context(quick=True, progress=unit))


def show(console: Console, outcomes: Sequence[Outcome], *, logs: bool = False) -> bool:
    """Print the table and what it means. Return whether every claim held.

    With ``logs`` a failure is shown with the ends of its machine's logs.
    """
    whole = [outcome for outcome in outcomes if not outcome.failed]
    if whole:
        console.print(_table(whole))
        for sentence in _sentences(whole):
            console.print(sentence, highlight=False)
    for outcome in outcomes:
        for claim, why in outcome.failed.items():
            console.print(f"[red]FAILED[/]  {outcome.part.name}: ", end="", highlight=False)
            console.print(
                f"{claim}: {why if logs else brief(why)}", markup=False, highlight=False, soft_wrap=True
            )
    if len(whole) != len(outcomes) and not logs:
        console.print("With --logs the ends of the failed machines' logs are shown.", highlight=False)
    return len(whole) == len(outcomes)


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Before and after, in instructions", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what", overflow="fold")
    for name in ("before", "after", "ratio", "to compare"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        heading = outcome.part.heading
        names = (heading.what, heading.before, heading.after, "", heading.beside)
        table.add_row(*names, style="bold")
        for line in outcome.part.lines(outcome.facts):
            beside = "" if line.beside is None else number(line.beside)
            values = (number(line.before), number(line.after), ratio(line), beside)
            table.add_row(f"  {line.measure}", *values)
        table.add_section()
    return table


def brief(why: str) -> str:
    """Return an error without the ends of logs."""
    return why.partition("\n")[0]


def number(value: float) -> str:
    """Return a number with its significant digits."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.1f}"


def ratio(line: Line) -> str:
    """Return after as a share of before."""
    return f"{line.after / line.before:.2f}" if line.before else "-"


def _sentences(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    gained = "; ".join(outcome.part.gained(outcome.facts) for outcome in outcomes)
    kept = "; ".join(outcome.part.kept(outcome.facts) for outcome in outcomes)
    return f"Gained: {gained}.", f"Not given up for it: {kept}."
