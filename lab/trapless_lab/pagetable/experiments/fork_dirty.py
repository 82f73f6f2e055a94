# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of a fork for a parent that has written to its memory, and of writing there again.

Invariant: guest/forkdirty.c says what is timed; every column is that program with the same pages.
"""

from collections.abc import Mapping
from statistics import linear_regression

from ...experiment.experiment import BeforeAfter, Context, Result, Row, Target, experiment
from ...experiment.workload import FORK_DIRTY, NS_PER_INSTRUCTION, fork_dirty_ns
from ...machines.pair import PAIRS
from ...machines.script import Step
from .. import columns, crossings, prices
from ..columns import BARE, RELAXED, STRICT, Column
from ..crossings import Crossings

PAGES = (0, 64, 256, 1024, 4096)
ROUNDS = 10
QUICK_ROUNDS = 2

AT_MOST = {"fork": 900_000, "redirty": 2_500_000}
AT_PAGES = 1024
WHAT = {"fork": "fork", "redirty": "writing every page again after the fork"}

# In a plot relaxed could not be distinguished from strict.
PLOTTED = ("bare", "stock", "boosted")

WRITES = ("redirty", "copied")
"""Operations that do not exist without pages."""

Costs = Mapping[int, Mapping[str, int]]
"""Dirty pages -> operation -> instructions."""


def _label(pages: int) -> str:
    return f"{pages} pages"


def _instructions(column: Column) -> dict[int, dict[str, int]]:
    return {
        pages: {
            operation: ns // NS_PER_INSTRUCTION
            for operation, ns in fork_dirty_ns(column[_label(pages)].result, pages).items()
        }
        for pages in PAGES
    }


def _crossings(column: Column, rounds: int) -> dict[str, Crossings]:
    """Return what one of each operation has, by its name and the parent's dirty pages."""
    return {
        _measure(operation, pages): column[_label(pages)].total(operation).each(rounds)
        for operation in FORK_DIRTY
        for pages in PAGES
    }


def _measure(operation: str, pages: int) -> str:
    return f"{operation}, {pages:,} pages"


def slope(costs: Costs, operation: str) -> float:
    """Return the instructions that a dirty page adds: the line of least squares through all sizes."""
    return linear_regression(list(costs), [costs[pages][operation] for pages in costs]).slope


def _row(operation: str, column: str, costs: Costs) -> Row:
    return {
        "operation": operation,
        "column": column,
        **{f"{pages:,} pages": costs[pages][operation] for pages in PAGES},
        "a page": round(slope(costs, operation), 1),
    }


@experiment(
    name="fork-dirty",
    accelerator="pagetable",
    title="A parent with dirty pages",
    reproduces="nothing of the papers: what fork costs beside their benchmarks",
    minutes=3,
    pairs=PAIRS,
)
def fork_dirty(context: Context) -> Result:
    """Measure fork and the writes after it on bare metal, and on a PV dom0 stock and boosted."""
    rounds = QUICK_ROUNDS if context.quick else ROUNDS
    machines = [BARE, STRICT, RELAXED][: 2 if context.quick else 3]
    steps = [Step(_label(pages), f"forkdirty --rounds {rounds} {pages}", timeout_s=300) for pages in PAGES]
    found = columns.take(context, machines, steps)
    taken = columns.values(found, _instructions)
    counted = columns.values(found, lambda column: _crossings(column, rounds))
    at_pages = [_measure(operation, AT_PAGES) for operation in FORK_DIRTY]
    priced = {
        name: {_measure(operation, AT_PAGES): costs[AT_PAGES][operation] for operation in FORK_DIRTY}
        for name, costs in taken.items()
    }
    compared = [(pages, op) for pages in PAGES for op in FORK_DIRTY if pages or op not in WRITES]
    slopes = {name: {op: round(slope(costs, op), 1) for op in FORK_DIRTY} for name, costs in taken.items()}
    if context.plots:
        for operation in AT_MOST:
            context.plots.lines(
                f"fork-dirty-{operation}.png",
                {
                    name: (list(taken[name]), [costs[operation] for costs in taken[name].values()])
                    for name in PLOTTED
                },
                x="dirty pages of the parent",
                y="instructions",
                title=f"A parent with dirty pages: {WHAT[operation]}",
            )
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; mean of {rounds} rounds. fork: the "
        "call in the parent; exit: from there until the child, which only exits, is waited for; redirty: "
        "one write to each page then; copied: the same while another child lives. a page: the slope of "
        "the line through all sizes; stock and boosted are one boot, before and after loading; "
        f"{crossings.METHOD}; {prices.METHOD}",
        rows=[
            *(_row(operation, name, taken[name]) for operation in FORK_DIRTY for name in taken),
            *crossings.named(crossings.rows(counted, at_pages), "operation"),
            *crossings.named(prices.rows(priced, counted, at_pages), "operation"),
        ],
        paper=[],
        checks=[
            columns.no_slower(
                boosted,
                {
                    f"{operation} with {pages} pages": (
                        taken[stock][pages][operation],
                        taken[boosted][pages][operation],
                    )
                    for pages, operation in compared
                },
            )
            for stock, boosted in columns.pairs(taken)
        ],
        machine=context.facts(machines),
        keys={
            **{name: {str(pages): dict(costs[pages]) for pages in PAGES} for name, costs in taken.items()},
            "slope": slopes,
            **crossings.keys(counted),
            "iotlb_flushes": {
                name: {str(pages): column[_label(pages)].iotlb_flushes for pages in PAGES}
                for name, column in found.items()
            },
        },
        summary=[
            BeforeAfter(
                f"{WHAT[operation]}, {AT_PAGES:,} dirty pages, instructions",
                f"{taken['stock'][AT_PAGES][operation]:,}",
                f"{taken['boosted'][AT_PAGES][operation]:,}",
                f"bare metal: {taken['bare'][AT_PAGES][operation]:,}",
            )
            for operation in AT_MOST
        ],
        targets=[
            Target(
                f"{operation} {boosted}, {AT_PAGES:,} dirty pages",
                taken[boosted][AT_PAGES][operation],
                at_most,
            )
            for operation, at_most in AT_MOST.items()
            for _, boosted in columns.pairs(taken)
        ],
    )
