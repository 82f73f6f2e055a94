# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of allocating and freeing a page table, level by level: PiBooster's Figures 9 to 11, its worst
case, and the cache's size and hits in the steady state.

Invariant: a plugin outside the guest counts a function's instructions from its call to its return, including
code that runs before or instead of it; a span with an interrupt, a fault or another task in it does not
count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

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
from ...machines.machine import MACHINES
from ...machines.script import Step
from ...plugins.spans import START, STOP
from ...profiler import kallsyms
from ...symbols import Area
from .. import parts as pagetable
from .. import recording, table_spans
from ..recording import Recorded
from ..table_phases import DIRECTIONS, PAPER_LEVELS, SEEN_BOOSTED, Phase, added, ms, percent_left
from ..table_spans import LEVELS, Direction, Level

MACHINE = MACHINES["xen-strict"].with_icount()


@dataclass(frozen=True)
class Size:
    """How long a run is: processes, rounds of the paper's browser, and points of a curve.

    The pool grows while it serves; after ``warm_up`` processes it must be large enough. ``before`` is the
    number of processes during loading, which takes the guest a second or two.
    """

    steady: int
    warm_up: int
    before: int
    rounds: int
    points: int


FULL = Size(steady=1000, warm_up=150, before=600, rounds=3, points=60)
QUICK = Size(steady=80, warm_up=40, before=320, rounds=1, points=20)

# The paper's workload, see pagetable_flushes; a round of its own is the warm-up.
_TABS = "--tabs 5 --mib 57"

# One table of the lowest level is all that the pool may have: nearly every allocation misses.
_STARVED = pagetable.pool_part("max_tables=1 prefill=1,0,0,0,0")

ALLOCATE_AT_MOST, FREE_AT_MOST = 40.0, 35.0
MISS_ADDS_AT_MOST = 20
# Interrupts and faults occur in few spans; with more the means would not be representative.
FOREIGN_AT_MOST = 0.05
# How far two phases that should cost the same may be apart.
SAME = 0.05

# The paper prints -55 % for free, which its own times do not give.
PAPER = [
    {"group": "baseline, ns", "level": "L1", "allocate": 944, "free": 366},
    {"group": "baseline, ns", "level": "L2", "allocate": 682, "free": 313},
    {"group": "baseline, ns", "level": "L3", "allocate": 755, "free": 627},
    {"group": "pre, ns", "level": "L1", "allocate": 622, "free": 196},
    {"group": "pre, ns", "level": "L2", "allocate": 424, "free": 242},
    {"group": "pre, ns", "level": "L3", "allocate": 260, "free": 217},
    {"group": "less by its times, %", "level": "all three", "allocate": 45.1, "free": 49.8},
    {"group": "less as printed, %", "level": "all three", "allocate": 45, "free": 55},
    {"group": "dyn, worst cases of 198,990", "level": "all three", "allocate": 348},
]


def _spawn(processes: int, warm_up: int = 0) -> str:
    warm = f" --warm-up {warm_up}" if warm_up else ""
    return f"spawn fork-exec --count {processes}{warm}"


@dataclass(frozen=True)
class Enabled:
    """The run in which everything happened between workloads."""

    stock: Phase
    pre: Phase
    missing: Phase
    hits: int
    misses: int
    cached: int
    held: int
    counted: Mapping[Level, tuple[int, int]]


@dataclass(frozen=True)
class Dyn:
    """The run in which the pool was enabled under the workload; times in instructions of the machine."""

    phase: Phase
    enabling: int
    enabled: int
    hits: int
    misses: int


def _run_enabled(context: Context, kernel: Area, size: Size) -> Enabled:
    parts = pagetable.PIBOOSTER_ALONE
    pool = pagetable.pool_step

    def counters(name: str) -> Step:
        return Step(name, pool().command)

    steps = [
        Step("stock", _spawn(size.steady, size.warm_up), timeout_s=600),
        *pagetable.load_steps(parts),
        Step("warm up", _spawn(size.warm_up), timeout_s=600),
        counters("before pre"),
        Step("pre", _spawn(size.steady), timeout_s=600),
        counters("after pre"),
        Step("warm up the browser", f"spawn browser --count 1 {_TABS}", timeout_s=600),
        counters("before the browser"),
        Step("browser", f"spawn browser --count {size.rounds} {_TABS}", timeout_s=900),
        counters("after the browser"),
        *pagetable.POOL_PART.unload,
        *_STARVED.load,
        Step("missing", _spawn(size.steady, size.warm_up), timeout_s=600),
    ]
    files = pagetable.files(parts)
    run = recording.take(
        context, "stock and pre", MACHINE, steps, plan=table_spans.plan(kernel), kernel=kernel, files=files
    )
    tables = table_spans.tables(run.records)
    stretches = table_spans.marks(run.records)
    if len(stretches) != 6:
        raise LabError(f"the recording has {len(stretches)} workloads of 6")
    stock, _, pre, _, _, missing = (Phase(tables, 0, 0).part(*stretch) for stretch in stretches)
    before, after = (pagetable.pool_sizes(run.transcript[f"{when} the browser"]) for when in _WHEN)
    around = [pagetable.pool_sizes(run.transcript[f"{when} pre"]) for when in _WHEN]
    hits, misses = (sum(after[x][y] - before[x][y] for x in LEVELS) for y in ("hits", "misses"))
    cached, in_use = (sum(pagetable.pool_pages(after, x).values()) for x in ("cached", "in_use"))
    asked = [{x: sizes[x]["hits"] + sizes[x]["misses"] for x in LEVELS} for sizes in around]
    seen: Mapping[str, int] = {
        x: sum(s.level == x and s.direction == "allocate" for s in pre.tables) for x in LEVELS
    }
    counted = {x: (asked[1][x] - asked[0][x], seen[x]) for x in SEEN_BOOSTED}
    return Enabled(stock, pre, missing, hits, misses, cached, cached + in_use, counted)


_WHEN = ("before", "after")


def _run_dyn(context: Context, kernel: Area, size: Size) -> Dyn:
    workload = _spawn(size.before + size.warm_up + size.steady)
    rest_off, *boost = pagetable.PIBOOSTER_ALONE
    steps = [
        *pagetable.load_steps([rest_off]),
        Step("start the workload", f"mkfifo /tmp/done; ({workload} >/tmp/workload 2>&1; echo >/tmp/done) &"),
        Step("let it run stock", "sleep 0.5"),
        Step("mark the enabling", "profiled true"),
        *pagetable.load_steps(boost),
        Step("mark that it is enabled", "profiled true"),
        # Waits in the shell itself: polling would put processes of its own beside the workload's.
        Step("let it run boosted", "read -r _ </tmp/done; cat /tmp/workload", timeout_s=900),
        pagetable.pool_step(),
    ]
    files = pagetable.files(pagetable.PIBOOSTER_ALONE)
    run = recording.take(
        context, "dyn", MACHINE, steps, plan=table_spans.plan(kernel), kernel=kernel, files=files
    )
    start, enabling, enabled, end = _dyn_marks(run)
    sizes = pagetable.pool_sizes(run.transcript["pool"])
    hits, misses = (sum(sizes[x][y] for x in LEVELS) for y in ("hits", "misses"))
    phase = Phase(table_spans.tables(run.records), 0, 0).part(start, end)
    return Dyn(phase, enabling, enabled, hits, misses)


def _dyn_marks(run: Recorded) -> tuple[int, int, int, int]:
    """Return when the workload began, the enabling began and was done, and the workload was done."""
    marks = [record for record in run.records if record.id in (START, STOP)]
    if [mark.id for mark in marks] != [START, START, STOP, START, STOP, STOP]:
        raise LabError("the workload did not run from before the enabling until after it; run it longer")
    start, _, enabling, enabled, _, end = (mark.at for mark in marks)
    return start, enabling, enabled, end


def _settled(dyn: Dyn, pre: Phase) -> Phase:
    """Return what of the run came after the enabling and the same number of processes as pre's warm-up."""
    span = dyn.phase.end - dyn.enabled
    return dyn.phase.part(dyn.enabled + min(span // 2, pre.end - pre.start), dyn.phase.end)


def _level_row(group: str, level: str, phase: Phase, levels: Iterable[Level]) -> Row:
    made, freed = (phase.clean(direction, levels) for direction in DIRECTIONS)
    # Boosted, user_pgd has no function of its own.
    return {
        "group": group,
        "level": level,
        "n": len(made),
        "allocate": round(fmean(s.ready for s in made), 1) if made else None,
        "whole": round(fmean(s.instructions for s in made), 1) if made else None,
        "free": round(fmean(s.instructions for s in freed), 1) if freed else None,
    }


def _rows(group: str, phase: Phase) -> list[Row]:
    own = [_level_row(group, level, phase, [level]) for level in LEVELS]
    theirs = [_level_row(group, name, phase, levels) for name, levels in PAPER_LEVELS.items()]
    together = {direction: round(phase.together(direction), 1) for direction in DIRECTIONS}
    return [*own, *theirs, {"group": group, "level": "all three", **together}]


def _json(phase: Phase) -> dict[str, dict[str, object]]:
    rows = {str(row["level"]): row for row in _rows("", phase)}
    return {
        name: {column: row.get(column) for column in ("allocate", "whole", "free")}
        for name, row in rows.items()
    }


def _near(name: str, a: Phase, b: Phase, what: str) -> Check:
    ratios = {d: a.together(d) / b.together(d) for d in DIRECTIONS}
    worst = max(ratios.values(), key=lambda ratio: abs(ratio - 1))
    return Check(
        name, abs(worst - 1) <= SAME, f"{what}: {100 * (worst - 1):+.1f} %, at most {SAME:.0%} apart"
    )


def _checks(found: Enabled, dyn: Dyn, settled: Phase) -> list[Check]:
    foreign = max(phase.foreign() for phase in (found.stock, found.pre, found.missing, dyn.phase))
    cheaper = {d: percent_left(found.stock, found.pre, d) for d in DIRECTIONS}
    # The shells of the steps, and of both readings of the counters, run outside the markers.
    apart = {level: abs(module - plugin) for level, (module, plugin) in found.counted.items()}
    allowed = {level: 80 + plugin // 50 for level, (_, plugin) in found.counted.items()}
    return [
        Check(
            "boosted is cheaper",
            all(left < 100 for left in cheaper.values()),
            ", ".join(f"{direction}: {left} % of stock" for direction, left in cheaper.items()),
        ),
        _near(
            "dyn begins as stock",
            dyn.phase.part(dyn.phase.start, dyn.enabling),
            found.stock,
            "before the enabling against stock",
        ),
        _near("dyn settles where pre is", settled, found.pre, "settled against pre"),
        Check(
            "the module's counters are the plugin's",
            all(apart[level] <= allowed[level] for level in apart),
            "; ".join(f"{level}: {a:,} and {b:,}" for level, (a, b) in found.counted.items()),
        ),
        Check(
            "few spans hold other code's instructions",
            foreign <= FOREIGN_AT_MOST,
            f"at most {foreign:.2%} of a phase were left out, {FOREIGN_AT_MOST:.0%} allowed",
        ),
    ]


def _plot(album: plots.Album, curves: Mapping[str, Mapping[str, Sequence[float | None]]]) -> None:
    for figure, level in zip((9, 10, 11), PAPER_LEVELS, strict=True):
        album.lines(
            f"pagetable-latency-{level}.png",
            {
                f"{name}, {direction}": _points(curve["ms"], curve[f"{level} {direction}"])
                for name, curve in curves.items()
                for direction in DIRECTIONS
            },
            x="guest milliseconds since the workload started (icount)",
            y="instructions",
            title=f"Making and giving back a table of {level}, as PiBooster's Figure {figure}",
        )


def _points(
    xs: Sequence[float | None], ys: Sequence[float | None]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the points that have a value."""
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _targets(found: Enabled, added_by_misses: Mapping[str, float]) -> list[Target]:
    made, freed = (percent_left(found.stock, found.pre, direction) for direction in DIRECTIONS)
    return [
        Target("allocate, three levels, % of stock", made, ALLOCATE_AT_MOST),
        Target("free, three levels, % of stock", freed, FREE_AT_MOST),
        Target("instructions a miss adds, worst level", max(added_by_misses.values()), MISS_ADDS_AT_MOST),
    ]


def _summary(found: Enabled, dyn: Dyn) -> list[BeforeAfter]:
    printed: Mapping[Direction, str] = {"allocate": "-45 %", "free": "-55 %"}
    asked = found.hits + found.misses
    return [
        *(
            BeforeAfter(
                f"{direction} a page table, three levels together, instructions",
                f"{found.stock.together(direction):,.0f}",
                f"{found.pre.together(direction):,.0f}",
                f"{percent_left(found.stock, found.pre, direction) - 100:+.0f} %; the paper: {paper}",
            )
            for direction, paper in printed.items()
        ),
        BeforeAfter(
            "allocations that find the cache empty, enabled under load",
            "",
            f"{dyn.misses:,} of {dyn.hits + dyn.misses:,}",
            f"steady state: {found.misses:,} of {asked:,}; the paper: 348 of 198,990",
        ),
    ]


@experiment(
    name="pagetable-latency",
    accelerator="pagetable",
    title="Making and freeing page tables",
    reproduces="PiBooster, Figures 9 to 11, the worst case, and its cache in the steady state",
    minutes=4,
)
def pagetable_latency(context: Context) -> Result:
    """Count the instructions of page-table functions stock, boosted before and while a workload runs."""
    pagetable.files(pagetable.PIBOOSTER_ALONE)  # or the first boot would be for nothing
    kernel = kallsyms.kernel(context.progress)
    size = QUICK if context.quick else FULL
    found = _run_enabled(context, kernel, size)
    dyn = _run_dyn(context, kernel, size)
    settled = _settled(dyn, found.pre)
    curves = {
        "stock": found.stock.curve(size.points),
        "pre": found.pre.curve(size.points),
        "dyn": dyn.phase.curve(size.points),
    }
    if context.plots:
        _plot(context.plots, curves)
    misses = {direction: added(found.stock, found.missing, direction) for direction in DIRECTIONS}
    return Result(
        unit="instructions",
        method="a QEMU plugin, from the call of a kernel's function to its return; mean of a phase, without "
        "those that hold an interrupt, a fault or another task. L1 is pgd with user_pgd in it, L2 the mean "
        "of all of pmd and pud until the parent points to the table (whole: with that and its "
        "hypercalls), L3 is pte. free: free_page_and_swap_cache after the grace period, and pgd_free",
        rows=[
            *_rows("stock", found.stock),
            *_rows("pre", found.pre),
            *_rows("dyn, settled", settled),
            *(
                {"group": "a miss adds", "level": level, **{d: misses[d][level] for d in DIRECTIONS}}
                for level in SEEN_BOOSTED
            ),
        ],
        paper=PAPER,
        checks=_checks(found, dyn, settled),
        machine=machine_facts([MACHINE], host.versions()),
        keys={
            "stock": _json(found.stock),
            "boosted": _json(found.pre),
            "dyn": {
                **_json(settled),
                "enabling_ms": ms(dyn.enabling - dyn.phase.start),
                "enabled_ms": ms(dyn.enabled - dyn.phase.start),
            },
            "miss": {
                "adds": misses["allocate"],
                "adds_to_free": misses["free"],
                "dyn_worst_cases": dyn.misses,
                "dyn_allocations": dyn.hits + dyn.misses,
                "dyn_percent": round(100 * dyn.misses / (dyn.hits + dyn.misses), 3),
            },
            "steady": {
                "hits": found.hits,
                "misses": found.misses,
                "cached": found.cached,
                "held": found.held,
            },
            "curves": curves,
        },
        summary=_summary(found, dyn),
        targets=_targets(found, misses["allocate"]),
    )
