# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How many IOTLB flushes a process costs: PiBooster's Figure 8, and its Table 1.

Invariant: QEMU's IOMMU counts the flushes, and the ticks that the workload itself writes into the same trace
divide them into buckets of exactly TICK processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import LabError
from ...experiment import plots
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, Target, experiment
from ...experiment.workload import tick_ns
from ...machines.machine import MACHINES
from ...machines.pair import PAIRS
from ...machines.script import Step, StepResult
from ...machines.trace import TICK, Counts
from ...machines.transcript import Transcript
from .. import parts as pagetable

MACHINE = MACHINES["xen-strict"].with_icount()
TICK_PROCESSES = 10
STEADY = 1000
QUICK_STEADY = 200
# The pool grows while it serves; after this many processes it must be large enough.
WARM_UP = 150
# Processes of the "dyn" workload while the module is loaded, which takes the guest a second or two.
BEFORE_ENABLED = 600
STOCK_AT_LEAST = 15
POOL_PAGES = 256

# The paper's browser: five processes, 284 MiB between them at the peak.
BROWSER = "spawn browser --count 3 --tabs 5 --mib 57"

PAPER = [
    {"group": "baseline", "flushes_per_process": round(9050 / 542, 1)},
    {
        "group": "pre",
        "flushes_per_process": 0,
        "cached_pte": 145,
        "cached_pmd": 26,
        "cached_pgd": 5,
        "cached": 176,
    },
    {
        "group": "dyn",
        "flushes_per_process": 0,
        "cached_pte": 136,
        "cached_pmd": 20,
        "cached_pgd": 4,
        "cached": 160,
    },
]


@dataclass(frozen=True)
class Series:
    """The cost of each tick's processes in one run, and when they were done on the guest's clock.

    The pool serves from the start of bucket ``enabled``; there is none if that is None.
    """

    buckets: Sequence[Counts]
    ns: Sequence[int]
    enabled: int | None

    @property
    def steady(self) -> Sequence[Counts]:
        """The buckets after the warm-up."""
        start = 0 if self.enabled is None else self.enabled + WARM_UP // TICK_PROCESSES
        return self.buckets[start:]

    @property
    def processes(self) -> int:
        """How many processes the steady state holds."""
        return len(self.steady) * TICK_PROCESSES

    @property
    def flushes(self) -> Counts:
        """All flushes of the steady state."""
        return sum(self.steady, Counts())

    def zero_after(self) -> int:
        """Return how many buckets after enabling the last flush occurred."""
        assert self.enabled is not None
        flushing = [i for i, counts in enumerate(self.buckets) if counts.flushes and i >= self.enabled]
        return flushing[-1] + 1 - self.enabled if flushing else 0

    def zero_after_ms(self) -> float:
        """Return the same in guest milliseconds."""
        assert self.enabled is not None
        times = [0, *self.ns]
        return (times[self.enabled + self.zero_after()] - times[self.enabled]) / 1e6


def series(
    transcript: Transcript, *, workload: str, report: StepResult, enabled_by: str | None = None
) -> Series:
    """Cut a run's trace at the workload's ticks.

    Step ``workload`` started it and ``report`` printed its records; the pool was enabled when step
    ``enabled_by`` ended.
    """
    start = transcript.index(workload)
    enabling = None if enabled_by is None else transcript.index(enabled_by)
    done: list[Counts] = []
    since_tick = Counts()
    enabled: int | None = None
    previous: int | None = None
    for bucket in transcript.buckets:
        if bucket.opened_by == "begin" and bucket.step == start:
            since_tick = Counts()
        elif bucket.opened_by == TICK:
            done.append(since_tick)
            since_tick = Counts()
        elif bucket.opened_by == "end" and previous == enabling and enabling is not None:
            enabled = len(done)
        since_tick += bucket.counts
        previous = bucket.step
    ns = tick_ns(report)
    if len(ns) != len(done):
        raise LabError(f"the workload wrote {len(ns)} ticks but the trace holds {len(done)}")
    return Series(done, ns, enabled)


def _spawn(processes: int) -> str:
    return f"spawn fork-exec --count {processes} --tick {TICK_PROCESSES}"


def _tail_steps() -> list[Step]:
    return [Step("browser", BROWSER, timeout_s=600), pagetable.pool_step()]


def _run_baseline(context: Context, steady: int) -> Series:
    step = Step("workload", _spawn(steady), timeout_s=600)
    transcript = context.run("baseline", MACHINE, [step])
    return series(transcript, workload="workload", report=transcript["workload"])


def _run_pre(context: Context, steady: int) -> tuple[Series, Row]:
    workload = Step("workload", _spawn(WARM_UP + steady), timeout_s=600)
    transcript = context.run(
        "pre",
        MACHINE,
        [*pagetable.load_steps(pagetable.PIBOOSTER_ALONE), workload, *_tail_steps()],
        pagetable.files(pagetable.PIBOOSTER_ALONE, context.pair),
    )
    found = series(
        transcript, workload="workload", report=transcript["workload"], enabled_by=pagetable.LOAD_MODULE
    )
    return found, _pool(transcript)


def _run_dyn(context: Context, steady: int) -> tuple[Series, Row]:
    workload = _spawn(BEFORE_ENABLED + WARM_UP + steady)
    rest_off, *boost = pagetable.PIBOOSTER_ALONE
    steps = [
        *pagetable.load_steps([rest_off]),
        Step("start the workload", f"mkfifo /tmp/done; ({workload} >/tmp/workload 2>&1; echo >/tmp/done) &"),
        Step("let it run stock", "sleep 0.5"),
        *pagetable.load_steps(boost),
        # A blocking read in the shell: polling would create further processes.
        Step("let it run boosted", "read -r _ </tmp/done; cat /tmp/workload", timeout_s=900),
        *_tail_steps(),
    ]
    transcript = context.run("dyn", MACHINE, steps, pagetable.files(pagetable.PIBOOSTER_ALONE, context.pair))
    found = series(
        transcript,
        workload="start the workload",
        report=transcript["let it run boosted"],
        enabled_by=pagetable.LOAD_MODULE,
    )
    return found, _pool(transcript)


def _pool(transcript: Transcript) -> Row:
    """Return the pages ready for allocation, which the paper's Table 1 counts, and all that are held."""
    sizes = pagetable.pool_sizes(transcript["pool"])
    ready, in_use = (pagetable.pool_pages(sizes, counter) for counter in ("cached", "in_use"))
    cached = sum(ready.values())
    levels = {f"cached_{level}": pages for level, pages in ready.items()}
    return {**levels, "cached": cached, "held": cached + sum(in_use.values())}


def _row(group: str, found: Series, pool: Row) -> Row:
    flushes = found.flushes
    return {
        "group": group,
        "processes": found.processes,
        "flushes_per_process": flushes.flushes / found.processes,
        "pages": flushes.pages,
        "domain": flushes.domain,
        "global": flushes.everything,
        **({} if found.enabled is None else _reached(found)),
        **pool,
    }


def _reached(found: Series) -> Row:
    return {
        "zero_after_processes": found.zero_after() * TICK_PROCESSES,
        "zero_after_ms": round(found.zero_after_ms(), 1),
    }


def _checks(group: str, found: Series, steady: int) -> list[Check]:
    zero_after = found.zero_after() * TICK_PROCESSES
    return [
        Check(
            f"{group} reaches zero",
            zero_after <= WARM_UP,
            f"the last flush is {zero_after} processes after the enabling, at most {WARM_UP} allowed",
        ),
        Check(
            f"{group} stays at zero",
            found.flushes.flushes == 0 and found.processes >= steady,
            f"{found.flushes.flushes} flushes in {found.processes} processes; none in {steady} wanted",
        ),
    ]


def _curve(found: Series) -> dict[str, list[float]]:
    """Return Figure 8's curve: one point a tick, on the guest's clock and counted in processes."""
    ends = [ns / 1e6 for ns in found.ns]
    spans = [end - start for start, end in pairwise([0.0, *ends])]
    return {
        "processes": [(i + 1) * TICK_PROCESSES for i in range(len(found.buckets))],
        "ms": ends,
        "flushes_per_process": [counts.flushes / TICK_PROCESSES for counts in found.buckets],
        "flushes_per_second": [
            1e3 * counts.flushes / span for counts, span in zip(found.buckets, spans, strict=True)
        ],
    }


def _plot(album: plots.Album, curves: Mapping[str, Mapping[str, list[float]]]) -> None:
    album.lines(
        "pagetable-flushes.png",
        {name: (curve["processes"], curve["flushes_per_process"]) for name, curve in curves.items()},
        x="processes since the workload started",
        y="IOTLB flushes a process",
        title="IOTLB flushes, counted by QEMU's IOMMU",
    )
    album.lines(
        "pagetable-flushes-time.png",
        {name: (curve["ms"], curve["flushes_per_second"]) for name, curve in curves.items()},
        x="guest milliseconds since the workload started (icount)",
        y="IOTLB flushes a second",
        title="Frequency of IOTLB flushes, as PiBooster's Figure 8",
    )


@experiment(
    name="pagetable-flushes",
    accelerator="pagetable",
    title="IOTLB flushes",
    reproduces="PiBooster, Figure 8 and Table 1",
    minutes=3,
    pairs=PAIRS,
)
def pagetable_flushes(context: Context) -> Result:
    """Count flushes stock, boosted before the workload, and boosted while it runs."""
    pagetable.files(pagetable.PIBOOSTER_ALONE, context.pair)  # or the first boot would be for nothing
    steady = QUICK_STEADY if context.quick else STEADY
    stock = _run_baseline(context, steady)
    pre, pre_pool = _run_pre(context, steady)
    dyn, dyn_pool = _run_dyn(context, steady)
    rows = [_row("baseline", stock, {}), _row("pre", pre, pre_pool), _row("dyn", dyn, dyn_pool)]
    curves = {name: _curve(found) for name, found in (("baseline", stock), ("pre", pre), ("dyn", dyn))}
    if context.plots:
        _plot(context.plots, curves)
    stock_flushes = stock.flushes.flushes / stock.processes
    return Result(
        unit="IOTLB flushes",
        method=f"invalidations in QEMU's VT-d trace, cut by ticks of {TICK_PROCESSES} processes; "
        f"steady state from {WARM_UP} processes after the enabling; pages cached and held after the browser",
        rows=rows,
        paper=PAPER,
        checks=[
            Check(
                "stock flushes",
                stock_flushes > STOCK_AT_LEAST,
                f"{stock_flushes:.1f} flushes a process, more than {STOCK_AT_LEAST} expected",
            ),
            *_checks("pre", pre, steady),
            *_checks("dyn", dyn, steady),
        ],
        machine=context.facts([MACHINE]),
        keys={
            "stock": {"flushes_per_process": stock_flushes},
            "boosted": {"flushes_per_process": pre.flushes.flushes / pre.processes},
            "processes": pre.processes,
            "curves": curves,
        },
        summary=[
            BeforeAfter(
                "IOTLB flushes a process",
                f"{stock_flushes:.1f}",
                f"{pre.flushes.flushes / pre.processes:.1f}",
                f"over {pre.processes:,} processes; enabled under load: zero after "
                f"{dyn.zero_after() * TICK_PROCESSES}",
            ),
            BeforeAfter(
                "pages the pool holds after the paper's workload",
                "0",
                f"{pre_pool['held']}",
                f"at most {POOL_PAGES} wanted, 1 MB",
            ),
        ],
        targets=[
            Target(f"{group}: pages held after the browser", pool["held"], POOL_PAGES)
            for group, pool in (("pre", pre_pool), ("dyn", dyn_pool))
        ],
    )
