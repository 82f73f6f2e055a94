# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What each way to track dirty pages costs in a stock Debian guest, in instructions: OoH's microbenchmark
and its formulas.

Invariant: every figure is of ``trapless dirty bench`` or of guest/parts.c, on the guest's clock, which
counts instructions. Missed pages are found by comparing memory. All costs of EPML are figures of a *model*:
no processor logs guest-virtual addresses. Instructions are not time: they do not include what a TLB flush or
a fault costs the processor beyond its instructions.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import artifacts, host
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
from ...machines.initramfs import File, Tree, program
from ...machines.machine import MACHINES, Machine
from ...machines.script import Step, StepResult
from ...machines.transcript import Transcript
from .. import formulas
from ..formulas import Parts
from .native import tool

MODULE = "trapless_dirty"

STOCK = MACHINES["bare"].with_icount()
# Half of the memory is the most that the bench takes, for the paper's 1 GB.
LARGE = replace(STOCK, memory_mib=4096)

EPML = "epml"
BACKENDS = ("soft-dirty", "uffd-sync", "mprotect", "dbit")
"""Back ends for a stock processor; SPML needs a hypervisor of its own (``nested``)."""

DENSITIES = (1.0, 0.1, 0.01)
SMALLEST = 64
SIZES = (SMALLEST, 128, 256, 512, 1024)
# At the smallest size a timer tick would distort a turn; the median of three turns has none.
REPEAT = 3

PARTS_MIB = SMALLEST
MECHANISMS = {"proc": "soft-dirty", "dbit": "dbit", EPML: EPML, "spml": "spml"}
"""Name of a technique in guest/parts.c -> the back end."""

DBIT_TRACKED_AT_MOST = 5
DBIT_COLLECT_AT_MOST = 150
EPML_CHEAPER = 4
# The compared loops may differ by reading the clock, once a pass: half an instruction a page.
NOTHING = 0.5
# An interrupt empties half of the model's ring; with fewer entries there is none.
ENTRIES_WITHOUT_INTERRUPT = 16384

PAPER = [
    {"technique": "ufd", "backend": "uffd-sync", "tracked": "15.6x", "tracker": "14.5x", "size": "1 GB"},
    {"technique": "/proc", "backend": "soft-dirty", "tracked": "4.3x", "tracker": "2.5x", "size": "1 GB"},
    {"technique": "SPML", "backend": "spml", "reverse mapping": "15.739 s", "hypercall": "4.49 us"}
    | {"size": "1 GB", "accuracy of the formulas": "96.34 %"},
    {"technique": "/proc", "backend": "soft-dirty", "accuracy of the formulas": "99 %"},
]
# How far the paper's estimates are off, in percent.
PAPER_OFF = {"soft-dirty": 1.0, "dbit": 3.66, EPML: 3.66}


def bench_command(backend: str, mib: int, density: float, repeat: int) -> str:
    """Return the shell's line for one run of the bench."""
    options = f"--size {mib}MiB --density {density:g} --repeat {repeat} --backend {backend}"
    # Without its progress bar; exit code 1 means missed pages, which the checks report.
    command = f"trapless dirty bench --json --quick {options} 2>/tmp/error"
    return f"{command}; [ $? -le 1 ] || {{ cat /tmp/error; false; }}"


def _bench_step(backend: str, mib: int, density: float, repeat: int) -> Step:
    return Step(_name(backend, mib, density), bench_command(backend, mib, density, repeat), 900)


def _name(backend: str, mib: int, density: float) -> str:
    return f"{backend}, {mib} MiB, {density:g} dirty"


def _parts_step(mechanism: str) -> Step:
    return Step(f"parts of {mechanism}", f"dirtyparts {mechanism} {PARTS_MIB}", 300)


def _steps(backends: Iterable[str], mechanisms: Iterable[str], sizes: Iterable[int]) -> list[Step]:
    return [
        Step("load module", f"insmod /lib/trapless/{MODULE}.ko"),
        *(_parts_step(mechanism) for mechanism in mechanisms),
        *(
            _bench_step(backend, mib, density, REPEAT if mib == SMALLEST else 1)
            for backend in backends
            for mib in sizes
            for density in DENSITIES
        ),
    ]


def files() -> Tree:
    """Return the guest files besides the lab's own programs."""
    module = artifacts.module("dirty", "module", MODULE)
    return {**program(tool()), f"/lib/trapless/{MODULE}.ko": File(module)}


def bench_row(result: StepResult, backend: str, mib: int, density: float) -> Row:
    """Return a row in instructions, from what one run of the bench printed."""
    lines = [line for line in result.output.splitlines() if line.startswith("{")]
    try:
        (row,) = json.loads(lines[-1])["rows"]
    except (IndexError, KeyError, ValueError) as error:
        raise LabError(f'step "{result.step.name}" printed no report:\n{result.output}') from error
    untracked = _instructions(row["untracked_ns_per_page"]["median"])
    tracked = _instructions(row["tracked_ns_per_page"])
    return {
        "backend": backend,
        "model": backend == EPML,
        "mib": mib,
        "density": density,
        "pages": row["pages"],
        "dirtied": row["dirtied"],
        "untracked_insns_per_page": round(untracked, 2),
        "tracked_insns_per_page": round(tracked - untracked, 2),
        "times_untracked": round(tracked / untracked, 2),
        "collect_insns_per_page": round(_instructions(row["collect_ns_per_page"]), 1),
        "collect_insns_per_watched_page": round(
            _instructions(row["collect_ns_per_page"]) * row["dirtied"] / row["pages"], 1
        ),
        "clean_insns_per_watched_page": round(_instructions(row["collect_clean"]["median"]), 1),
        "arm_insns_per_watched_page": round(_instructions(row["arm"]["median"]), 1),
        "twin_collect_insns_per_page": round(_instructions(row["twin_collect"]["median"]), 1),
        "missed": row["missed"],
        "spurious": row["spurious"],
        "twin_missed": row["twin_missed"],
    }


def _instructions(ns: float) -> float:
    return ns / NS_PER_INSTRUCTION


def _numbers(result: StepResult, pattern: str) -> dict[str, int]:
    found = re.findall(rf"^{pattern}$", result.output, re.MULTILINE)
    if not found:
        raise LabError(f'step "{result.step.name}" printed no "{pattern}":\n{result.output}')
    return {name: int(value) for name, value in found}


# The steps of finding dirty pages, of /proc and of the module's device; SPML's begin with a drain of the log.
_FINDING = ("drain", "walk", "parse", "clear", "collect", "read")


def parts_row(result: StepResult, mechanism: str) -> Row:
    """Return the formulas' estimates and the measurements, in instructions, from dirtyparts' records."""
    spent = _numbers(result, r"part (\w+) ns=(\d+)(?: n=\d+)?")
    whole = _numbers(result, r"whole (\w+) ns=(\d+)")
    sample = int(re.findall(r"^part fault ns=\d+ n=(\d+)$", result.output, re.MULTILINE)[0])
    faults = _numbers(result, r"(faults) n=(\d+)")["faults"]
    counters = re.findall(r"(\w+) n=(\d+)", result.output.splitlines()[-1])
    counts = {name: int(value) for name, value in counters}
    parts = Parts(
        tracked=spent["tked"] / NS_PER_INSTRUCTION,
        finding={name: spent[name] / NS_PER_INSTRUCTION for name in _FINDING if name in spent},
        processing=spent["process"] / NS_PER_INSTRUCTION,
        fault=spent["fault"] / sample / NS_PER_INSTRUCTION,
        faults=faults,
    )
    measured = {name: whole[name] / NS_PER_INSTRUCTION for name in ("tker", "tked_tker")}
    estimated = {"tker": formulas.tracker(parts), "tked_tker": formulas.tracked_and_tracker(parts)}
    return {
        "backend": MECHANISMS[mechanism],
        "model": mechanism == EPML,
        "mib": PARTS_MIB,
        "tked": round(parts.tracked),
        **{f"x: {name}": round(value) for name, value in parts.finding.items()},
        "p": round(parts.processing),
        "a fault": round(parts.fault, 1),
        "faults": faults,
        **{f"{name} estimated": round(value) for name, value in estimated.items()},
        **{f"{name} measured": round(value) for name, value in measured.items()},
        **{
            f"{name} accuracy %": round(formulas.accuracy(estimated[name], measured[name]), 2)
            for name in measured
        },
        # What the paper's microbenchmark prints for each side.
        "times tracked": round((measured["tked_tker"] - measured["tker"]) / parts.tracked, 1),
        "times tracker": round(measured["tker"] / parts.processing, 2),
        **counts,
    }


def _dense(rows: Sequence[Row], backend: str) -> list[Row]:
    return [row for row in rows if row["backend"] == backend and row["density"] == 1]


def misses_nothing(backend: str, rows: Sequence[Row]) -> Check:
    """Check that a back end missed nothing, by comparing memory."""
    own = [row for row in rows if row["backend"] == backend]
    missed, twin = (sum(row[key] for row in own) for key in ("missed", "twin_missed"))
    spurious = sum(row["spurious"] for row in own)
    text = f"{missed} pages missed in {len(own)} runs, {twin} by the bare mechanism; {spurious} spurious"
    return Check(f"{backend} misses nothing", missed == twin == 0, text)


def cheaper(rows: Sequence[Row]) -> list[float]:
    """Return how many times EPML's tracker is cheaper than that of /proc, run by run.

    Interrupts that empty the log while the tracked program runs count as the tracker's work.
    """
    proc = {(row["mib"], row["density"]): row for row in rows if row["backend"] == "soft-dirty"}
    return [
        proc[row["mib"], row["density"]]["collect_insns_per_page"]
        / (row["collect_insns_per_page"] + max(row["tracked_insns_per_page"], 0))
        for row in rows
        if row["backend"] == EPML
    ]


def checks(rows: Sequence[Row], parts: Sequence[Row]) -> list[Check]:
    """Compare the rows with the targets."""
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    slowest = max(row["tracked_insns_per_page"] for row in rows if row["backend"] == "dbit")
    collect = max(row["collect_insns_per_page"] for row in _dense(rows, "dbit"))
    undisturbed = [row for row in _dense(rows, EPML) if row["dirtied"] <= ENTRIES_WITHOUT_INTERRUPT]
    extra = max(row["tracked_insns_per_page"] for row in undisturbed)
    least = min(cheaper(rows))
    duplicates = sum(
        row["logged"] - row["foreign"] - row["reported"] for row in parts if row["backend"] == EPML
    )
    lost = {row["backend"]: row["missed"] for row in parts}
    return [
        *(misses_nothing(backend, rows) for backend in backends),
        Check(
            "dbit on the tracked",
            slowest <= DBIT_TRACKED_AT_MOST,
            f"{slowest} instructions a dirtied page, at most {DBIT_TRACKED_AT_MOST} wanted",
        ),
        Check(
            "dbit on the tracker",
            collect <= DBIT_COLLECT_AT_MOST,
            f"{collect} instructions a page, all dirty, at most {DBIT_COLLECT_AT_MOST} wanted",
        ),
        Check(
            "epml (model) on the tracked",
            abs(extra) < NOTHING,
            f"{extra} instructions a dirtied page where the log needs no interrupt, 0 wanted",
        ),
        Check(
            "epml (model) on the tracker",
            least >= EPML_CHEAPER,
            f"{least:.1f} times cheaper than /proc at the least, {EPML_CHEAPER} wanted",
        ),
        Check("epml (model) logs once", duplicates == 0, f"{duplicates} pages logged twice, 0 wanted"),
        Check(
            "the parts miss nothing",
            not any(lost.values()),
            ", ".join(f"{backend}: {missed}" for backend, missed in lost.items()),
        ),
    ]


def _targets(parts: Sequence[Row]) -> list[Target]:
    return [
        Target(
            f"{row['backend']}{' (model)' if row['model'] else ''}: E(C_{of}) is off by, %",
            round(100 - row[f"{of} accuracy %"], 2),
            PAPER_OFF[row["backend"]],
        )
        for row in parts
        for of in ("tker", "tked_tker")
    ]


def _shown(backend: str) -> str:
    return f"{backend} (model)" if backend == EPML else backend


def _plot(album: plots.Album, rows: Sequence[Row]) -> None:
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    smallest = [row for row in rows if row["mib"] == SMALLEST]
    for who, key, page in (
        ("tracked", "tracked_insns_per_page", "dirtied"),
        ("tracker", "collect_insns_per_watched_page", "watched"),
    ):
        album.bars(
            f"dirty-guest-{who}.png",
            [f"{100 * density:g} % dirty" for density in DENSITIES],
            {
                _shown(backend): [max(row[key], 0) for row in smallest if row["backend"] == backend]
                for backend in backends
            },
            y=f"instructions a {page} page",
            title=f"Tracking {SMALLEST} MiB in a guest: cost on the {who}",
        )
    album.lines(
        "dirty-guest-sizes.png",
        {
            _shown(backend): (
                [row["mib"] for row in _dense(rows, backend)],
                [row["collect_insns_per_page"] for row in _dense(rows, backend)],
            )
            for backend in backends
        },
        x="MiB watched, all pages dirty",
        y="instructions a page",
        title="A collect by size, in a guest",
    )


def _rows(transcript: Transcript, backends: Iterable[str], sizes: Iterable[int]) -> list[Row]:
    return [
        bench_row(transcript[_name(backend, mib, density)], backend, mib, density)
        for backend in backends
        for mib in sizes
        for density in DENSITIES
    ]


def _run(
    context: Context, label: str, machine: Machine, mechanisms: Sequence[str], backends: Sequence[str]
) -> tuple[list[Row], list[Row]]:
    sizes = SIZES[:1] if context.quick else SIZES
    transcript = context.run(label, machine, _steps(backends, mechanisms, sizes), files())
    parts = [parts_row(transcript[_parts_step(name).name], name) for name in mechanisms]
    return _rows(transcript, backends, sizes), parts


def _summary(rows: Sequence[Row]) -> list[BeforeAfter]:
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["density"] == 1:
            first.setdefault(row["backend"], row)
    proc, ours, model = (first[name] for name in ("soft-dirty", "dbit", EPML))
    return [
        BeforeAfter(
            f"instructions a dirtied page on the {who} (/proc before, dbit after)",
            f"{proc[key]:,.0f}",
            f"{ours[key]:,.0f}",
            f"EPML (model): {model[key]:,.0f}; userfaultfd: {first['uffd-sync'][key]:,.0f}",
        )
        for who, key in (("tracked", "tracked_insns_per_page"), ("tracker", "collect_insns_per_page"))
    ]


@experiment(
    name="dirty-guest",
    accelerator="dirty",
    title="Dirty pages in a guest",
    reproduces="OoH: the microbenchmark and the formulas (EPML: a model)",
    minutes=10,
)
def dirty_guest(context: Context) -> Result:
    """Measure every back end in a stock guest, EPML on a model of the processor, and try the formulas."""
    stock = STOCK if context.quick else LARGE
    model = stock.with_epml()
    rows, parts = _run(context, "stock", stock, ("proc", "dbit"), BACKENDS)
    modelled, modelled_parts = _run(context, "epml model", model, (EPML,), (EPML,))
    rows += modelled
    parts += modelled_parts
    if context.plots:
        _plot(context.plots, rows)
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; trapless dirty bench, medians; one "
        "word of each page is written; tracked_insns_per_page: beyond the same writes untracked; missed and "
        "spurious by comparing memory. epml: MODEL of a processor with EPML (docs/epml.md). Formulas: "
        f"guest/parts.c, {PARTS_MIB} MiB, all pages dirty; tracker and tracked take turns on one CPU",
        rows=rows,
        paper=PAPER,
        checks=checks(rows, parts),
        machine=machine_facts([stock, model], host.versions()),
        keys={"formulas": parts, "times_cheaper_than_proc": [round(times, 2) for times in cheaper(rows)]},
        summary=_summary(rows),
        targets=_targets(parts),
    )
