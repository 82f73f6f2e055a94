# SPDX-License-Identifier: Apache-2.0 OR MIT
"""When to shrink the pool: the paper's thresholds beside one that adapts, over a day. A *model* (PiBooster,
sections 3.5.2 and 6.2, its future work; the draft's section 5.2).

Invariant: the allocations were recorded in a machine; the module's own policy.c decides when the pool
shrinks. The day, and the pool's behaviour, are a model and are labelled so.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ... import host
from ...errors import LabError
from ...experiment import plots
from ...experiment.experiment import (
    BeforeAfter,
    Check,
    Context,
    Result,
    Row,
    Target,
    experiment,
    machine_facts,
)
from ...experiment.workload import NS_PER_INSTRUCTION
from ...machines.machine import MACHINES
from ...machines.script import Step
from ...plugins.spans import START
from ...profiler import kallsyms
from .. import pool_model, recording, table_spans
from ..policy import Kind, Policy
from ..pool_model import TICK_S, Outcome, Run, Workload

MACHINE = MACHINES["xen-strict"].with_icount()

# Background jobs rather than nested spawns, whose markers would count as separate workloads.
_STORM = "for i in 1 2 3 4 5 6 7 8; do (for j in 1 2 3 4; do /bin/nothing; done) & done; wait"
RECORDED = {
    "idle": "profiled sleep 60",
    "small storm": "spawn fork-exec --count 10",
    "shells": "spawn fork-sh --count 10",
    "storm": f"profiled sh -c '{_STORM}'",
    "browser": "spawn browser --count 1 --tabs 5 --mib 57",
}

HOUR = 3600
# A browser's round takes five minutes, as in the draft, whatever it took in the machine.
BROWSER_S = 300
# Hour of the day -> how often each workload starts, in seconds.
DAY: Sequence[tuple[int, Mapping[str, int]]] = (
    (0, {"idle": 60}),
    (7, {"idle": 60, "small storm": 60}),
    (9, {"browser": BROWSER_S, "small storm": 20, "shells": 60}),
    (12, {"idle": 60, "small storm": 60}),
    (13, {"browser": BROWSER_S, "small storm": 20, "shells": 60, "storm": 600}),
    (17, {"storm": 15, "small storm": 10}),
    (18, {"idle": 60, "shells": 300}),
    (22, {"idle": 60}),
)
HOURS = 24
# A quick day has the same phases, each shorter by this.
QUICK_SHORTER = 6

# The module's own defaults, which are the paper's limit and the draft's num_in_pool - num_in_use.
DEFAULTS = {"number": 180, "percent": 100}
NUMBERS = (20, 40, 80, 120, 180, 250, 300, 350, 400)
PERCENTS = (25, 50, 100, 200, 400)
QUICK_NUMBERS, QUICK_PERCENTS = (40, 180, 250), (100,)
MISSES_AT_MOST = 0.2


def policies(numbers: Sequence[int] = NUMBERS, percents: Sequence[int] = PERCENTS) -> dict[str, Policy]:
    """Return every policy that is compared: the fixed ones as they are and with other thresholds."""
    number, percent = DEFAULTS["number"], DEFAULTS["percent"]
    found = {"none": Policy(Kind.NONE, number, percent), "adaptive": Policy(Kind.ADAPTIVE, number, percent)}
    found |= {f"number {n}": Policy(Kind.NUMBER, n, percent) for n in numbers}
    found |= {f"proportion {p} %": Policy(Kind.PROPORTION, number, p) for p in percents}
    found |= {f"both, {n} and {percent} %": Policy(Kind.BOTH, n, percent) for n in numbers}
    return found


def _record(context: Context) -> dict[str, Workload]:
    steps = [
        *(Step(name, command, timeout_s=600) for name, command in RECORDED.items()),
        # The last workload's tables have been freed by then.
        Step("end", "sleep 1; profiled true"),
    ]
    kernel = kallsyms.kernel(context.progress)
    run = recording.take(context, "record", MACHINE, steps, plan=table_spans.plan(kernel), kernel=kernel)
    starts = [record.at for record in run.records if record.id == START]
    if len(starts) != len(steps):
        raise LabError(f"the recording has {len(starts)} workloads of {len(steps)}")
    tables = table_spans.tables(run.records)
    # A workload's tables are freed after its end, so it lasts until the next; a sleep executes nothing.
    return {
        name: Workload.of(
            name,
            max(run.transcript[name].duration_s, (end - start) * NS_PER_INSTRUCTION / 1e9),
            tables,
            start,
            end,
        )
        for name, (start, end) in zip(RECORDED, pairwise(starts), strict=True)
    }


def day(workloads: Mapping[str, Workload], shorter: int = 1) -> tuple[list[Run], int]:
    """Return the day's runs in order, and how many seconds the day has."""
    edges = [*(hour for hour, _ in DAY), HOURS]
    runs = []
    for (first, last), (_, every) in zip(pairwise(edges), DAY, strict=True):
        start, end = (hour * HOUR // shorter for hour in (first, last))
        for name, seconds in every.items():
            workload = workloads[name]
            takes = BROWSER_S if name == "browser" else workload.seconds
            runs += [Run(at, takes, workload) for at in range(start, end, seconds)]
    return sorted(runs, key=lambda run: run.at), HOURS * HOUR // shorter


def _row(name: str, outcome: Outcome) -> Row:
    return {
        "policy": name,
        "hits %": round(outcome.hit_percent, 3),
        "mean pages": round(outcome.mean_held, 1),
        "mean cached": round(sum(outcome.cached) / len(outcome.cached), 1),
        "peak": max(outcome.held),
        "shrinks": outcome.shrinks,
        "given back": outcome.given_back,
    }


def best_fixed(outcomes: Mapping[str, Outcome]) -> str | None:
    """Return the fixed policy that holds the fewest pages of those with as many hits as the adaptive one.

    Compared are the printed digits.
    """
    wanted = round(outcomes["adaptive"].hit_percent, 2)
    fixed = {
        name: outcome.mean_held
        for name, outcome in outcomes.items()
        if name not in ("none", "adaptive") and round(outcome.hit_percent, 2) >= wanted
    }
    return min(fixed, key=lambda name: fixed[name]) if fixed else None


# These must shrink on any day.
_SHRINKING = ("adaptive", "number 40")


def _plot(album: plots.Album, outcomes: Mapping[str, Outcome]) -> None:
    # Only the module's own policies; more lines would hide them.
    shown = ("none", "number 180", "proportion 100 %", "both, 180 and 100 %", "adaptive")
    hours = [(i + 1) * TICK_S / HOUR for i in range(len(outcomes["none"].held))]
    album.lines(
        "pagetable-shrinking-size.png",
        {name: (hours, outcomes[name].held) for name in shown},
        x="hour of the day (model)",
        y="pages that the pool holds",
        title="MODEL: the pool over an idle and busy day, by policy",
    )
    album.lines(
        "pagetable-shrinking-hits.png",
        {name: _hourly(outcomes[name]) for name in shown},
        x="hour of the day (model)",
        y="hits, %",
        title="MODEL: allocations that the pool served, by policy",
    )


def _hourly(outcome: Outcome) -> tuple[list[float], list[float]]:
    """Return hours, and the part of the last quarter of an hour's allocations that were hits."""
    wide = HOUR // TICK_S // 4
    edges = range(0, len(outcome.hits) - wide + 1, wide)
    asked = [(edge, sum(outcome.asked[edge : edge + wide])) for edge in edges]
    return (
        [(edge + wide) * TICK_S / HOUR for edge, all in asked if all],
        [100 * sum(outcome.hits[edge : edge + wide]) / all for edge, all in asked if all],
    )


def _checks(workloads: Mapping[str, Workload], outcomes: Mapping[str, Outcome]) -> list[Check]:
    tables = {name: sum(made for _, made in workload.what) for name, workload in workloads.items()}
    freed = {name: sum(not made for _, made in workload.what) for name, workload in workloads.items()}
    uneven = [name for name in tables if abs(tables[name] - freed[name]) > 20 + tables[name] // 20]
    most = max(outcome.hit_percent for outcome in outcomes.values())
    asked = {sum(outcome.asked) for outcome in outcomes.values()}
    return [
        Check(
            "what the workloads make they give back",
            not uneven and tables["storm"] > tables["idle"],
            "; ".join(f"{name}: {tables[name]:,} made, {freed[name]:,} given back" for name in tables),
        ),
        Check(
            "every policy has the same day",
            len(asked) == 1 and min(asked) > 0,
            f"{min(asked):,} allocations",
        ),
        Check(
            "nothing hits more often than a pool that never shrinks",
            outcomes["none"].hit_percent == most and not outcomes["none"].given_back,
            f"{outcomes['none'].hit_percent:.3f} %, at most {most:.3f} % of any",
        ),
        Check(
            "the policies shrink",
            all(outcome.given_back for name, outcome in outcomes.items() if name in _SHRINKING),
            ", ".join(f"{name} gave back {outcomes[name].given_back:,} tables" for name in _SHRINKING),
        ),
    ]


@experiment(
    name="pagetable-shrinking",
    accelerator="pagetable",
    title="Shrinking the pool over a day (MODEL)",
    reproduces="PiBooster, section 6.2: a threshold that adapts, its future work",
    minutes=3,
)
def pagetable_shrinking(context: Context) -> Result:
    """Model a day of the pool with each policy for shrinking it, from recorded allocations."""
    workloads = _record(context)
    runs, seconds = day(workloads, QUICK_SHORTER if context.quick else 1)
    compared = policies(QUICK_NUMBERS, QUICK_PERCENTS) if context.quick else policies()
    outcomes = {name: pool_model.simulate(runs, seconds, policy) for name, policy in compared.items()}
    if context.plots:
        _plot(context.plots, outcomes)
    adaptive, best = outcomes["adaptive"], best_fixed(outcomes)
    against = f"{best}: {outcomes[best].mean_held:.1f}" if best else "no fixed policy hits as often"
    return Result(
        unit="model",
        method="MODEL: allocations and frees recorded in the machine, laid out over a day of "
        f"{seconds / HOUR:g} hours; the module's policy.c, compiled for this host, asked every {TICK_S} s. "
        "pages: what the pool holds, cached and in use; a table made after a miss is the kernel's",
        rows=[_row(name, outcome) for name, outcome in outcomes.items()],
        paper=[
            {
                "policy": "the paper",
                "says": "thresholds on number and proportion, set by hand; adapting them: future work",
            }
        ],
        checks=_checks(workloads, outcomes),
        machine=machine_facts([MACHINE], host.versions()),
        keys={
            "model": True,
            "adaptive": _row("adaptive", adaptive),
            "best_fixed": _row(best, outcomes[best]) if best else None,
            "day": {
                name: {"held": outcome.held, "hits": outcome.hits, "asked": outcome.asked}
                for name, outcome in outcomes.items()
            },
        },
        summary=[
            BeforeAfter(
                "pages the pool holds on the day's mean, never shrunk and adaptive (model)",
                f"{outcomes['none'].mean_held:.0f}",
                f"{adaptive.mean_held:.0f}",
                f"{adaptive.hit_percent:.2f} % hits; best fixed threshold at as many hits: {against}",
            )
        ],
        targets=[
            Target("adaptive (model): misses, %", round(100 - adaptive.hit_percent, 3), MISSES_AT_MOST),
            *(
                [
                    Target(
                        f"adaptive (model): mean pages, below those of the best fixed policy ({best})",
                        round(adaptive.mean_held, 1),
                        round(outcomes[best].mean_held, 1),
                    )
                ]
                if best
                else []
            ),
        ],
    )
