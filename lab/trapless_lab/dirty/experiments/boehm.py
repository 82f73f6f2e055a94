# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The stock Boehm collector as the tracker of GCBench and of Phoenix' kernels: OoH's "Tracker Results" and
"Tracked Results" for Boehm.

The collector is Debian's libgc1. In incremental mode it asks /proc which pages are dirty, or protects pages
itself; with the shim before it, its questions are answered by the kernel module.

Invariant: a run counts only if its checksum is that of the same program with malloc, if the collector was
incremental, and if it asked whom it should. Times are on the guest's clock, which counts instructions, 2 ns
each; what a flush or a fault costs a processor beyond its instructions is not in them. EPML is a *model*.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ... import artifacts, host
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
from ...machines.initramfs import File, Tree, program
from ...machines.machine import Machine
from ...machines.nested import Inner
from ...machines.pair import PAIRS
from ...machines.script import Step, StepResult
from .. import formulas, workloads
from ..formulas import Parts
from ..workloads import SIZES, WORKLOADS, Size, Workload
from . import trackers
from .guest import EPML, MODULE
from .guest_spml import OUTER, SPML
from .trackers import (
    LOAD,
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

_SHIM = "/lib/trapless/libdirty_softdirty.so"
# A collection ends by work done, and not by the clock.
_STEADY = "GC_PAUSE_TIME_TARGET=999999"
_INCREMENTAL = "GC_ENABLE_INCREMENTAL=1"


@dataclass(frozen=True)
class Technique:
    """How the collector learns what is dirty; ``shim``: the back end that answers it, and ``words``: how the
    shim is told.
    """

    name: str
    environment: str
    shim: str = ""
    words: str = ""

    @property
    def incremental(self) -> bool:
        """Whether the collector tracks at all."""
        return _INCREMENTAL in self.environment

    def line(self, command: str) -> str:
        """Return the shell's line that runs a collected program."""
        preload, more = workloads.TIMER, ""
        if self.shim:
            preload, more = f"{preload}:{_SHIM}", f" LIBDIRTY_SOFTDIRTY={self.words or self.shim},verbose"
        return f"{_STEADY} {self.environment}{more} LD_PRELOAD={preload} {command}"


UNTRACKED = Technique("untracked", "")
PROC = Technique(trackers.PROC, _INCREMENTAL)
MPROTECT = Technique("mprotect", f"{_INCREMENTAL} GC_USE_GETWRITEWATCH=0")
DBIT, BY_EPML, BY_SPML = (Technique(name, _INCREMENTAL, name) for name in ("dbit", EPML, SPML))
TECHNIQUES = (PROC, MPROTECT, DBIT)
"""On a stock processor."""
UFFD = Technique("uffd-async", _INCREMENTAL, "uffd-async", words="force")
_LATER = PAIRS["debian13"]
LATER = _LATER.machine(STOCK)
"""A program can have itself tracked by userfaultfd from Linux 6.7 on."""

NESTED = ("gcbench", "pca", "string-match")
"""What SPML's own table has."""

DBIT_CHEAPER = 4
EPML_CHEAPER = 6
TRACKED_PERCENT = 24
_READS_ARE_FILLED = (
    "libgc reads up to 2,048 entries at a time, however small its heap is, and each is to be filled; "
    "the share falls as the heap grows"
)
CHEAPEST_MS = 1.0
"""If /proc takes less in a run, nothing is compared with it."""

PAPER = [
    {"technique": "/proc", "tracked": "up to 232 % over untracked (string-match)"},
    {"technique": "SPML", "tracker": "3x slower than /proc", "tracked": "up to 273 % (string-match)"},
    {"technique": "EPML", "tracker": "2x faster than /proc, 6x than SPML", "tracked": "at most 24 %"},
    *paper_sizes(WORKLOADS),
]


def files() -> Tree:
    """Return the guest files besides the lab's own programs."""
    shim = artifacts.program(Path(_SHIM).name)
    libraries = {path: entry for path, entry in program(shim).items() if not path.startswith("/bin/")}
    module = artifacts.module("dirty", "module", MODULE)
    return {
        **workloads.files(),
        **libraries,
        _SHIM: File(shim),
        f"/lib/trapless/{MODULE}.ko": File(module),
    }


def _steps(size: Size, techniques: Sequence[Technique], *, malloc: bool, module: bool) -> list[Step]:
    if module:
        steps = [Step("prepare", f"{SMALL_PAGES} && {LOAD}")]
        steps += fault_steps(technique.name for technique in techniques)
    else:
        steps = [*_LATER.settling, Step("prepare", SMALL_PAGES)]
    for workload in WORKLOADS:
        if malloc:
            command = workload.command(size, collected=False)
            steps.append(Step(run_name(workload, size, "malloc"), command, 900))
        collected = workload.command(size, collected=True)
        steps += [
            Step(run_name(workload, size, technique.name), technique.line(collected), 1800)
            for technique in (UNTRACKED, *techniques)
        ]
    return steps


@dataclass(frozen=True)
class Run:
    """What one run of a program printed."""

    checksum: str
    ms: float
    incremental: bool = False
    collections: int = 0
    tracker_ms: float = 0
    clears: int = 0
    protects: int = 0
    faults: int = 0
    backend: str = ""


def parse(result: StepResult) -> Run:
    """Return what a step's run printed."""
    done = re.search(r"^done \S+ sum=([0-9a-f]{16}) ns=(\d+)$", result.output, re.MULTILINE)
    if done is None:
        raise LabError(f'step "{result.step.name}" printed no result:\n{result.output}')
    run = Run(done[1], int(done[2]) / 1e6)
    own = re.search(r"^collector incremental=(\d) collections=(\d+)", result.output, re.MULTILINE)
    passes = re.search(r"^passes .*$", result.output, re.MULTILINE)
    if own is None or passes is None:
        return run
    spent = dict(re.findall(r"\b(\w+)=(\d+)", passes[0]))
    backend = re.search(r"process (?:\d+ )?is tracked by (\S+)$", result.output, re.MULTILINE)
    return replace(
        run,
        incremental=own[1] == "1",
        collections=int(own[2]),
        tracker_ms=sum(int(spent[f"{call}_ns"]) for call in ("read", "clear", "protect")) / 1e6,
        clears=int(spent["clears"]),
        protects=int(spent["protects"]),
        faults=int(spent["faults"]),
        backend=backend[1] if backend else "",
    )


def asked_whom_it_should(technique: Technique, run: Run) -> bool:
    """Whether dirty bits came from where the technique has them."""
    if not run.incremental or run.backend != technique.shim:
        return False
    # Memory without pointers is not protected, so there may be nothing to protect.
    return not run.clears if technique == MPROTECT else run.clears > 0 and not run.protects


def row(workload: Workload, size: Size, technique: Technique, run: Run, untracked: Run, checksum: str) -> Row:
    """Return a row; ``checksum`` is that of the program with malloc."""
    return {
        "program": workload.name,
        "size": size,
        "technique": technique.name,
        "model": technique.name == EPML,
        "tracker_ms": round(run.tracker_ms, 3),
        "tracked_ms": round(run.ms, 3),
        "untracked_ms": round(untracked.ms, 3),
        "overhead_percent": round(100 * (run.ms / untracked.ms - 1), 1),
        "collections": run.collections,
        "checksum_ok": run.checksum == untracked.checksum == checksum,
        "asked": asked_whom_it_should(technique, run),
    }


def _rows(
    results: dict[str, StepResult],
    checksums: dict[str, str],
    sizes: Iterable[Size],
    techniques: Sequence[Technique],
    names: Iterable[str],
) -> list[Row]:
    rows = []
    for size in sizes:
        for workload in (workload for workload in WORKLOADS if workload.name in names):
            untracked = parse(results[run_name(workload, size, UNTRACKED.name)])
            for technique in techniques:
                run = parse(results[run_name(workload, size, technique.name)])
                checksum = checksums[run_name(workload, size, "malloc")]
                rows.append(row(workload, size, technique, run, untracked, checksum))
    return rows


def formula_row(
    workload: Workload, size: Size, technique: str, run: Run, untracked: Run, other: Run, a_fault: float
) -> Row:
    """Return the paper's formula against what was measured, in ms.

    What an incremental collector does besides asking, C_p, is taken from its run by another technique, one
    without faults. The collector is a part of the program, so E(C_tker) alone is in no measurement.
    """
    parts = Parts(
        tracked=untracked.ms,
        finding={"questions": run.tracker_ms},
        processing=other.ms - untracked.ms - other.tracker_ms,
        fault=a_fault,
        faults=max(run.faults - untracked.faults, 0),
    )
    estimated = formulas.tracked_and_tracker(parts)
    return {
        "program": workload.name,
        "size": size,
        "technique": technique,
        "model": technique == EPML,
        "tked": round(parts.tracked, 3),
        "x": round(run.tracker_ms, 3),
        "p": round(parts.processing, 3),
        "a fault": round(parts.fault, 6),
        "faults": parts.faults,
        "tked_tker estimated": round(estimated, 3),
        "tked_tker measured": round(run.ms, 3),
        "tked_tker accuracy %": round(formulas.accuracy(estimated, run.ms), 1),
    }


# Technique -> that of which its C_p is. The model's machine is the same but for the log.
_C_P_OF = {PROC.name: DBIT.name, DBIT.name: EPML, EPML: DBIT.name}


def _formulas(results: Mapping[str, StepResult], sizes: Iterable[Size]) -> list[Row]:
    """Return a row for each program and size, and each technique of which a fault was measured."""
    rows = []
    for size, (technique, other) in product(sizes, _C_P_OF.items()):
        a_fault = fault_ms(results, technique)
        for workload in WORKLOADS:
            run, untracked, besides = (
                parse(results[run_name(workload, size, name)]) for name in (technique, UNTRACKED.name, other)
            )
            rows.append(formula_row(workload, size, technique, run, untracked, besides, a_fault))
    return rows


def inner(size: Size) -> Inner:
    """Return the inner guest that runs what SPML's table has."""
    lines = ["set -e", f"{SMALL_PAGES} || true", LOAD]
    for workload in (workload for workload in WORKLOADS if workload.name in NESTED):
        command = workload.command(size, collected=True)
        for technique in (UNTRACKED, PROC, BY_SPML):
            lines += [nested.section(run_name(workload, size, technique.name)), technique.line(command)]
    return Inner(SPML, "\n".join(lines) + "\n", files())


def of_proc(rows: Sequence[Row], technique: str) -> dict[str, float]:
    """Return a technique's tracker's time as a share of that of /proc, by program and size."""
    proc = {(found["program"], found["size"]): found["tracker_ms"] for found in rows if _is(found, PROC)}
    return {
        f"{found['program']}, {found['size']}": found["tracker_ms"] / proc[found["program"], found["size"]]
        for found in rows
        if found["technique"] == technique and proc[found["program"], found["size"]] >= CHEAPEST_MS
    }


def _is(found: Row, technique: Technique) -> bool:
    return bool(found["technique"] == technique.name)


def checks(rows: Sequence[Row]) -> list[Check]:
    """Check the rows, those of the nested guest among them."""
    return [
        Check(
            "nothing in use was freed",
            all(found["checksum_ok"] for found in rows),
            f"checksums as with malloc: {which(rows, 'checksum_ok')}",
        ),
        Check(
            "each technique is what it is called",
            all(found["asked"] for found in rows),
            f"incremental, and asked whom it should: {which(rows, 'asked')}",
        ),
    ]


def _targets(rows: Sequence[Row], size: Size) -> list[Target]:
    targets = []
    for technique, cheaper in ((DBIT, DBIT_CHEAPER), (BY_EPML, EPML_CHEAPER)):
        share = 100 * of_proc(rows, technique.name)[f"gcbench, {size}"]
        name = f"{shown(technique.name)}: tracker of gcbench, % of that of /proc"
        targets.append(Target(name, round(share, 1), round(100 / cheaper, 1), _READS_ARE_FILLED))
        targets += tracked_targets(rows, size, technique.name, TRACKED_PERCENT)
    return targets


def _plot(album: Album, rows: Sequence[Row], size: Size) -> None:
    techniques = [technique.name for technique in (*TECHNIQUES, BY_EPML)]
    for who, key, y in (
        ("tracker", "tracker_ms", "ms to learn which pages are dirty"),
        ("tracked", "overhead_percent", "% over untracked"),
    ):
        file, title = f"dirty-boehm-{who}.png", f"Boehm, {size}, on the {who}"
        bars(album, file, rows, size, techniques, key=key, y=y, heading=title)


def _summary(rows: Sequence[Row], size: Size) -> list[BeforeAfter]:
    by = {(found["program"], found["technique"]): found for found in rows if found["size"] == size}
    lines = []
    for name, key, unit in (
        ("gcbench", "tracker_ms", "ms to learn what is dirty"),
        ("gcbench", "overhead_percent", "% over untracked"),
        ("string-match", "overhead_percent", "% over untracked"),
    ):
        before, after, model, own = (
            by[name, technique.name][key] for technique in (PROC, DBIT, BY_EPML, MPROTECT)
        )
        lines.append(
            BeforeAfter(
                f"{name}, {size}: {unit} (/proc before, dbit after)",
                f"{before:,.1f}",
                f"{after:,.1f}",
                f"EPML (model): {model:,.1f}; mprotect: {own:,.1f}",
            )
        )
    return lines


def _run(
    context: Context,
    label: str,
    machine: Machine,
    techniques: Sequence[Technique],
    sizes: Sequence[Size],
    *,
    malloc: bool = False,
    module: bool = True,
) -> dict[str, StepResult]:
    """Run a machine a size: of a run that is interrupted, what is whole need not be run again."""
    results: dict[str, StepResult] = {}
    for size in sizes:
        steps = _steps(size, techniques, malloc=malloc, module=module)
        transcript = context.run(f"{label} {size}", machine, steps, files())
        results |= {result.step.name: result for result in transcript.results}
    return results


@experiment(
    name="dirty-boehm",
    accelerator="dirty",
    title="The Boehm collector as the tracker",
    reproduces="OoH: tracker and tracked results of Boehm (EPML: a model; SPML nested, a table of its own)",
    minutes=5,
)
def dirty_boehm(context: Context) -> Result:
    """Run GCBench and Phoenix' kernels on the stock Boehm collector, with each way to learn what is dirty."""
    sizes = SIZES[:1] if context.quick else SIZES
    names = [workload.name for workload in WORKLOADS]
    model = STOCK.with_epml()
    stock = _run(context, "stock", STOCK, TECHNIQUES, sizes, malloc=True)
    checksums = {name: parse(result).checksum for name, result in stock.items() if name.endswith("malloc")}
    rows = _rows(stock, checksums, sizes, TECHNIQUES, names)
    modelled = _run(context, "epml model", model, (BY_EPML,), sizes)
    rows += _rows(modelled, checksums, sizes, (BY_EPML,), names)
    later = _run(context, "later linux", LATER, (PROC, UFFD), sizes, module=False)
    uffd = _rows(later, checksums, sizes, (PROC, UFFD), names)
    spml = _rows(run_nested(context, inner(sizes[0])), checksums, sizes[:1], (PROC, BY_SPML), NESTED)
    together = {**stock, **{name: result for name, result in modelled.items() if name.endswith(EPML)}}
    if context.plots:
        _plot(context.plots, rows, sizes[-1])
    return Result(
        unit="ms",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; Debian's libgc1, one thread, "
        "THP never, no randomised addresses; untracked: the same collector, not incremental. tracker_ms: in "
        "read(pagemap), write(clear_refs), and mprotect that takes the permission to write "
        "(workloads/passtimer.c). checksum_ok: as with malloc. epml: MODEL of a processor with EPML "
        "(docs/epml.md). spml: NESTED EMULATION, instructions of both guests, a table of its own: not to be "
        "compared with rows. userfaultfd: on Linux 6.12, the first in stock Debian that lets a program track "
        "itself so, and a table of its own as well",
        rows=rows,
        paper=PAPER,
        checks=checks([*rows, *uffd, *spml]),
        machine=machine_facts([STOCK, model, LATER, OUTER], host.versions()),
        keys={
            "spml": spml,
            "userfaultfd": uffd,
            "formulas": _formulas(together, sizes),
            "tracker_of_proc": {
                technique: {name: round(share, 3) for name, share in of_proc(rows, technique).items()}
                for technique in (DBIT.name, BY_EPML.name)
            },
            "spml_tracker_of_proc": {name: round(share, 3) for name, share in of_proc(spml, SPML).items()},
            "userfaultfd_tracker_of_proc": {
                name: round(share, 3) for name, share in of_proc(uffd, UFFD.name).items()
            },
        },
        summary=_summary(rows, sizes[-1]),
        targets=_targets(rows, sizes[-1]),
    )
