# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stock criu as the tracker of tkrzw's engines and of Phoenix' kernels: OoH's "Tracker Results" and "Tracked
Results" for CRIU.

Two pre-dumps and a dump of each program while it runs (guest/criu-rounds). criu is Debian's, and by itself
asks /proc which pages are dirty; under ``trapless criu`` its questions are answered by a holder.

Invariant: a run counts only if every page that was restored from the three sets of images is as it was when
the dump had stopped the program (guest/memory.c, which asks no tracker), if the program that was dumped and
the one that was restored end with the same result as one that was left alone, and if criu left pages to the
images before.
Times are on the guest's clock, which counts instructions, 2 ns each; what a flush or a fault costs a
processor beyond its instructions is not in them. EPML is a *model*.

There is one processor. So that criu's own work does not hide what tracking costs the program, the program's
time is the processor's time that it had itself, its faults among it, and that which the holder had outside of
criu's three runs, which is spent on these faults. What one processor does in all is beside it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ... import host
from ...errors import LabError
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
from ...experiment.plots import Album
from ...experiment.workload import NS_PER_INSTRUCTION
from ...machines import nested
from ...machines.initramfs import File, Tree
from ...machines.nested import Inner
from ...machines.script import Step, StepResult
from .. import criu, formulas, workloads
from ..formulas import Parts
from ..workloads import CHECKPOINTED, SIZES, Size, Workload
from . import guest
from .guest import EPML
from .guest_spml import OUTER, SPML
from .trackers import (
    DBIT,
    LOAD,
    PROC,
    SMALL_PAGES,
    STOCK,
    bars,
    fault_ms,
    fault_steps,
    paper_sizes,
    run_name,
    run_nested,
    shown,
    tracked_targets,
    which,
)

UNTRACKED = "untracked"
TECHNIQUES = (PROC, "uffd-sync", DBIT)
"""On a stock processor."""
_OTHERS = tuple(name for name in (*TECHNIQUES, EPML) if name != PROC)

QUICK = ("stdhash", "tiny", "pca")
NESTED = ("tiny", "pca")
"""What SPML's own table has."""

# Seconds before each dump. While criu starts and writes, the program runs as well.
_PAUSES: Mapping[Size, float] = {"small": 0.12, "medium": 0.3, "large": 0.8}
_DUMPS = ("one", "two", "three")
# The first is a full one, for every technique.
_INCREMENTS = _DUMPS[1:]

DBIT_CHEAPER = 3
EPML_CHEAPER = 4
TRACKED_PERCENT = 7

PAPER = [
    {"technique": "/proc", "tracked": "up to 102 % over untracked (pca: 19.7 s alone, 39.8 s)"},
    {"technique": "SPML", "tracker": "5x slower than /proc", "tracked": "up to 114 % (pca: 42.2 s)"},
    {"technique": "EPML", "tracker": "4x faster than /proc, 13x than SPML"}
    | {"tracked": "at most 7 % (pca: 21.0 s)"},
    {"technique": "formulas", "accuracy": "SPML 96.34 %, /proc 99 %"},
    *paper_sizes(CHECKPOINTED),
]

# criu-rounds starts dirtytimed; a machine carries the programs that its steps name. And the first who wants
# random numbers of a kernel that has just booted takes a second of its processor to make them.
READY = "dirtytimed ready head -c 1 /dev/random >/dev/null"
"""A step that makes a machine ready for criu-rounds."""


def round_files(*, mutant: bool = False) -> Tree:
    """Return the guest files that ``rounds`` needs; ``mutant``: a trapless that can err."""
    return {
        **workloads.files(),
        **guest.files(),
        **criu.files(mutant=mutant),
        "/bin/criu-rounds": File(criu.ROUNDS, 0o755),
        # Before the library that answers, which is preloaded already.
        "/bin/criu-asked": File(
            f'#!/bin/sh\nexport LD_PRELOAD="{workloads.TIMER}:$LD_PRELOAD"\nexec criu "$@"\n'.encode(), 0o755
        ),
    }


def files() -> Tree:
    """Return all guest files; the engines among them are of a package that only the experiment needs."""
    return {**round_files(), **workloads.engine_files()}


def rounds(command: str, pause: float, backend: str) -> str:
    """Return the shell's line that measures the checkpoints of a program."""
    return f"dirtymemory run criu-rounds /tmp/rounds {pause:g} {backend} {command}"


def _line(workload: Workload, size: Size, technique: str) -> str:
    command = workload.command(size, collected=False)
    if technique == UNTRACKED:
        # The same environment as in criu-rounds.
        alone = "GLIBC_TUNABLES=glibc.pthread.rseq=0 dirtytimed tracked /tmp/pid /tmp/out"
        return f"{alone} {command}; tail -n 3 /tmp/out"
    return rounds(command, _PAUSES[size], "proc" if technique == PROC else technique)


def _steps(names: Iterable[str], size: Size, techniques: Sequence[str]) -> list[Step]:
    return [
        Step("prepare", f"{READY} && {SMALL_PAGES} && {LOAD}"),
        criu.PREPARE,
        *fault_steps(techniques),
        *(
            Step(run_name(workload, size, technique), _line(workload, size, technique), 1800)
            for workload in CHECKPOINTED
            if workload.name in names
            for technique in (UNTRACKED, *techniques)
        ),
    ]


@dataclass(frozen=True)
class Run:
    """What one program and its checkpoints took, in ms of the guest's clock; of a program that was left
    alone, the first three.
    """

    result: str
    tracked: float
    faults: int
    restored: str = ""
    compared_pages: int = 0
    wrong_pages: int = 0
    """Of these, which are not as they were in the program that was dumped, or are on one side only."""
    criu: float = 0
    """The processor's time of the three runs of criu, and of the holder during them."""
    serving: float = 0
    """The processor's time of the holder between them."""
    asked: float = 0
    """Of criu, in the questions of all three."""
    counts: Mapping[str, Mapping[str, int]] | None = None
    """By dump, what criu says of it, and in us what it spent in all questions ("asked") and in those that
    read a pagemap ("reads").
    """
    complaints: tuple[str, ...] = ()

    def mean(self, what: str) -> float:
        """Return the mean of the dumps that are increments, in ms."""
        return sum(self.total(what)) / len(_INCREMENTS) / 1000

    def total(self, what: str) -> list[int]:
        """Return what criu counted in the increments."""
        return [(self.counts or {})[dump][what] for dump in _INCREMENTS]


_TIMED = re.compile(r"^timed (\w+) wall_ns=\d+ cpu_ns=(\d+) faults=(\d+) status=0\r?$", re.MULTILINE)
_HOLDER = re.compile(r"^holder ([a-z ]+) cpu_ns=(\d+)\r?$", re.MULTILINE)
_PASSES = re.compile(r"^passes (\w+) reads=\d+ read_ns=(\d+) clears=(\d+) clear_ns=(\d+)", re.MULTILINE)
_COMPLAINT = re.compile(r"^.*reads? dirty.*$", re.MULTILINE)
# Of a later dump it would mean that this one leaves nothing to those before, which is looked at.
_OF_THE_FIRST = "was not cleared since it is tracked here"
_COUNTED = re.compile(r"^(one|two|three): ([A-Z][a-z ]*): (\d+)", re.MULTILINE)


def _result(text: str, label: str, step: Step) -> str:
    """Return what a program printed last, without what depends on time."""
    done = re.search(
        rf"^{label}(?:done \S+ sum=(\w+)|Setting done: .* (num_records=\d+))", text, re.MULTILINE
    )
    if done is None:
        raise LabError(f'step "{step.name}" printed no result:\n{text}')
    return str(done[1] or done[2])


def parse(result: StepResult) -> Run:
    """Return what a step's run printed."""
    text, step = result.output, result.step
    timed = {name: (int(cpu) / 1e6, int(faults)) for name, cpu, faults in _TIMED.findall(text)}
    if "tracked" not in timed:
        raise LabError(f'step "{step.name}" did not end well:\n{text}')
    tracked, faults = timed["tracked"]
    if not timed.keys() & set(_DUMPS):
        return Run(_result(text, "", step), tracked, faults)
    counts: dict[str, dict[str, int]] = {}
    for dump, what, number in _COUNTED.findall(text):
        counts.setdefault(dump, {})[what] = int(number)
    for dump, read, _, clear in _PASSES.findall(text):
        counts[dump]["reads"] = int(read) // 1000
        counts[dump]["asked"] = (int(read) + int(clear)) // 1000
    if any("asked" not in counts.get(dump, {}) or dump not in timed for dump in _DUMPS):
        raise LabError(f'step "{step.name}" has not the three dumps:\n{text}')
    compared = criu.compared(text)
    if compared is None:
        raise LabError(f'step "{step.name}" compared no memory:\n{text}')
    held = {name: int(cpu) / 1e6 for name, cpu in _HOLDER.findall(text)}
    during = sum(held[f"after {dump}"] - held[f"before {dump}"] for dump in _DUMPS) if held else 0
    return Run(
        _result(text, "program: ", step),
        tracked,
        faults,
        restored=_result(text, "restored: ", step),
        compared_pages=compared[0],
        wrong_pages=compared[1],
        criu=sum(timed[dump][0] for dump in _DUMPS) + during,
        serving=held["at end"] - during if held else 0,
        asked=sum(counts[dump]["asked"] for dump in _DUMPS) / 1000,
        counts=counts,
        complaints=tuple(found for found in _COMPLAINT.findall(text) if _OF_THE_FIRST not in found),
    )


def row(workload: Workload, size: Size, technique: str, run: Run, untracked: Run) -> Row:
    """Return a row."""
    own = run.tracked + run.serving
    return {
        "program": workload.name,
        "size": size,
        "technique": technique,
        "model": technique == EPML,
        "tracker_ms": round(run.mean("asked"), 3),
        "reads_ms": round(run.mean("reads"), 3),
        "memory_dump_ms": round(run.mean("Memory dump time"), 3),
        "memory_write_ms": round(run.mean("Memory write time"), 3),
        "frozen_ms": round(run.mean("Frozen time"), 3),
        "criu_ms": round(run.criu, 3),
        "pages_written": sum(run.total("Memory pages written")),
        "pages_left": sum(run.total("Memory pages skipped from parent")),
        "tracked_ms": round(own, 3),
        "untracked_ms": round(untracked.tracked, 3),
        "overhead_percent": round(100 * (own / untracked.tracked - 1), 1),
        "with_criu_percent": round(100 * ((own + run.criu) / untracked.tracked - 1), 1),
        "compared_pages": run.compared_pages,
        "wrong_pages": run.wrong_pages,
        "memory_ok": run.compared_pages > 0 and run.wrong_pages == 0,
        "result_ok": run.result == untracked.result == run.restored,
        "incremental": min(run.total("Memory pages skipped from parent")) > 0 and not run.complaints,
    }


def _rows(
    results: Mapping[str, StepResult], names: Iterable[str], sizes: Iterable[Size], techniques: Sequence[str]
) -> list[Row]:
    rows = []
    for size in sizes:
        for workload in (workload for workload in CHECKPOINTED if workload.name in names):
            untracked = parse(results[run_name(workload, size, UNTRACKED)])
            rows += [
                row(workload, size, name, parse(results[run_name(workload, size, name)]), untracked)
                for name in techniques
            ]
    return rows


def formula_row(
    workload: Workload, size: Size, technique: str, run: Run, untracked: Run, other: Run, a_fault: float
) -> Row:
    """Return the paper's formulas against what was measured, in ms: all three dumps, on one processor.

    What criu does besides asking, C_p, is taken from its run by another technique. criu does less where it
    runs alone, and that it does with /proc only: there C_p is of the same run, and E(C_tker) no estimate.
    """
    parts = Parts(
        tracked=untracked.tracked,
        finding={"questions": run.asked},
        processing=other.criu - other.asked,
        fault=a_fault,
        faults=max(run.faults - untracked.faults, 0),
    )
    measured = {"tker": run.criu, "tked_tker": run.criu + run.tracked + run.serving}
    estimated = {"tker": formulas.tracker(parts), "tked_tker": formulas.tracked_and_tracker(parts)}
    if other == run:
        del measured["tker"]
    return {
        "program": workload.name,
        "size": size,
        "technique": technique,
        "model": technique == EPML,
        "tked": round(parts.tracked, 3),
        "x": round(run.asked, 3),
        "p": round(parts.processing, 3),
        "a fault": round(parts.fault, 6),
        "faults": parts.faults,
        **{
            f"{of} {kind}": round(values[of], 3)
            for of in measured
            for kind, values in (("estimated", estimated), ("measured", measured))
        },
        **{f"{of} accuracy %": round(formulas.accuracy(estimated[of], measured[of]), 1) for of in measured},
    }


# Technique -> that of which its C_p is. The model's machine is the same but for the log.
_C_P_OF = {PROC: PROC, DBIT: EPML, EPML: DBIT}


def _formulas(results: Mapping[str, StepResult], names: Iterable[str], sizes: Iterable[Size]) -> list[Row]:
    """Return a row for each program, size and technique."""
    rows = []
    for size, (technique, other) in product(sizes, _C_P_OF.items()):
        a_fault = fault_ms(results, technique)
        for workload in (workload for workload in CHECKPOINTED if workload.name in names):
            run, untracked, besides = (
                parse(results[run_name(workload, size, name)]) for name in (technique, UNTRACKED, other)
            )
            rows.append(formula_row(workload, size, technique, run, untracked, besides, a_fault))
    return rows


def inner(size: Size) -> Inner:
    """Return the inner guest that runs what SPML's table has."""
    lines = [
        "set -e",
        criu.LOAD_MODULES,
        READY,
        f"{SMALL_PAGES} || true",
        criu.PREPARE.command,
        LOAD,
    ]
    for workload in (workload for workload in CHECKPOINTED if workload.name in NESTED):
        for technique in (UNTRACKED, PROC, SPML):
            lines += [nested.section(run_name(workload, size, technique)), _line(workload, size, technique)]
    return Inner(SPML, "\n".join(lines) + "\n", {**files(), **criu.module_files()}, memory=criu.INNER_MEMORY)


def of_proc(rows: Sequence[Row], technique: str, size: Size, key: str) -> float:
    """Return a technique's share of what /proc takes, all programs of a size together."""
    totals = {
        name: sum(found[key] for found in rows if found["technique"] == name and found["size"] == size)
        for name in (technique, PROC)
    }
    return float(totals[technique] / totals[PROC])


def checks(rows: Sequence[Row]) -> list[Check]:
    """Check the rows, those of the nested guest among them."""
    return [
        Check(
            "every page is restored as it was",
            all(found["memory_ok"] for found in rows),
            f"{sum(found['compared_pages'] for found in rows):,} pages compared, "
            f"{sum(found['wrong_pages'] for found in rows):,} wrong: {which(rows, 'memory_ok')}",
        ),
        Check(
            "what was restored ends right",
            all(found["result_ok"] for found in rows),
            f"dumped and restored programs end like one that was left alone: {which(rows, 'result_ok')}",
        ),
        Check(
            "each dump is an increment",
            all(found["incremental"] for found in rows),
            f"pages were left to the images before, and nobody complained: {which(rows, 'incremental')}",
        ),
    ]


def _all_is_read(rows: Sequence[Row], size: Size) -> str:
    proc = [found for found in rows if found["technique"] == PROC and found["size"] == size]
    reads, all_ = (sum(found[key] for found in proc) for key in ("reads_ms", "tracker_ms"))
    return (
        "to learn which pages are there stock criu reads the whole pagemap, whoever says which are dirty: "
        f"{100 * reads / all_:.0f} % of its questions to /proc are these reads, which a holder adds to"
    )


def _targets(rows: Sequence[Row], size: Size) -> list[Target]:
    targets = []
    for technique, cheaper in ((DBIT, DBIT_CHEAPER), (EPML, EPML_CHEAPER)):
        share = 100 * of_proc(rows, technique, size, "tracker_ms")
        name = f"{shown(technique)}: tracker's questions, % of those to /proc"
        targets.append(Target(name, round(share, 1), round(100 / cheaper, 1), _all_is_read(rows, size)))
        targets += tracked_targets(rows, size, technique, TRACKED_PERCENT)
    return targets


def _plot(album: Album, rows: Sequence[Row], size: Size) -> None:
    for what, key, y, title in (
        ("tracker", "memory_dump_ms", "ms of memory dump, an increment", "on the tracker"),
        ("questions", "tracker_ms", "ms to learn which pages are dirty, an increment", "on the tracker"),
        ("frozen", "frozen_ms", "ms frozen, an increment", "how long the program stands still"),
        ("tracked", "overhead_percent", "% over untracked", "on the tracked"),
    ):
        file, titled = f"dirty-criu-{what}.png", f"CRIU, {size}, {title}"
        bars(album, file, rows, size, (*TECHNIQUES, EPML), key=key, y=y, heading=titled)


def _summary(rows: Sequence[Row], size: Size) -> list[BeforeAfter]:
    by = {(found["program"], found["technique"]): found for found in rows if found["size"] == size}
    lines = []
    for name, key, unit in (
        ("tiny", "tracker_ms", "ms to learn what is dirty"),
        ("tiny", "frozen_ms", "ms frozen"),
        ("tiny", "overhead_percent", "% over untracked"),
        ("pca", "overhead_percent", "% over untracked"),
    ):
        before, sync, after, model = (by[name, technique][key] for technique in (*TECHNIQUES, EPML))
        lines.append(
            BeforeAfter(
                f"{name}, {size}: {unit} (/proc before, dbit after)",
                f"{before:,.1f}",
                f"{after:,.1f}",
                f"EPML (model): {model:,.1f}; userfaultfd: {sync:,.1f}",
            )
        )
    return lines


@experiment(
    name="dirty-criu",
    accelerator="dirty",
    title="CRIU as the tracker",
    reproduces="OoH: tracker and tracked results of CRIU (EPML: a model; SPML nested, a table of its own)",
    minutes=15,
)
def dirty_criu(context: Context) -> Result:
    """Checkpoint tkrzw's engines and Phoenix' kernels by stock criu, with each way to learn what is dirty."""
    sizes = SIZES[:1] if context.quick else SIZES
    names = QUICK if context.quick else tuple(workload.name for workload in CHECKPOINTED)
    model = STOCK.with_epml()
    spml = _rows(run_nested(context, inner(sizes[0])), NESTED, sizes[:1], (PROC, SPML))
    stock: dict[str, StepResult] = {}
    modelled: dict[str, StepResult] = {}
    # A machine a size: of a run that is interrupted, what is whole need not be run again.
    for size in sizes:
        for label, machine, techniques, results in (
            ("stock", STOCK, TECHNIQUES, stock),
            ("epml model", model, (EPML,), modelled),
        ):
            transcript = context.run(
                f"{label} {size}", machine, _steps(names, size, techniques), files(), modules=criu.MODULES
            )
            results |= {result.step.name: result for result in transcript.results}
    rows = _rows(stock, names, sizes, TECHNIQUES) + _rows(modelled, names, sizes, (EPML,))
    together = {**stock, **{name: result for name, result in modelled.items() if name.endswith(EPML)}}
    if context.plots:
        _plot(context.plots, rows, sizes[-1])
    return Result(
        unit="ms",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; Debian's criu and tkrzw, one thread, "
        "THP never, no randomised addresses; two pre-dumps and a dump. tracker_ms, memory_dump_ms, "
        "memory_write_ms, frozen_ms: means of the second and the third; the first of them in pread(pagemap) "
        "and write(clear_refs) (workloads/passtimer.c), the others criu's own statistics. tracked_ms: the "
        "processor's time of the program, and of the holder outside of criu's runs; with_criu_percent: with "
        "criu's own on the same processor. epml: MODEL of a processor with EPML (docs/epml.md). spml: NESTED "
        "EMULATION, instructions of both guests, a table of its own: not to be compared with rows",
        rows=rows,
        paper=PAPER,
        checks=checks([*rows, *spml]),
        machine=machine_facts(
            [STOCK, model, OUTER], host.versions() | host.package_versions(["criu", "tkrzw-utils"])
        ),
        keys={
            "spml": spml,
            "formulas": _formulas(together, names, sizes),
            "tracker_of_proc": {
                technique: {
                    key: round(of_proc(rows, technique, sizes[-1], key), 3)
                    for key in ("tracker_ms", "memory_dump_ms", "frozen_ms", "criu_ms")
                }
                for technique in _OTHERS
            },
        },
        summary=_summary(rows, sizes[-1]),
        targets=_targets(rows, sizes[-1]),
    )
