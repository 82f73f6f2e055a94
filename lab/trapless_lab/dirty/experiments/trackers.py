# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the experiments with somebody else's tracker share (criu.py, boehm.py): the machine, the name of a
run, the nested run of SPML, what a fault takes, and what is said and drawn of rows.

Invariant: a row is of one program, size and technique, and has all three by these names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...experiment.experiment import Context, Row, Target
from ...experiment.plots import Album
from ...experiment.workload import NS_PER_INSTRUCTION
from ...machines import nested
from ...machines.machine import MACHINES
from ...machines.nested import Inner
from ...machines.script import Step, StepResult
from ..workloads import Size, Workload
from . import guest
from .guest import EPML, MODULE
from .guest_spml import OUTER

# Addresses, and so collisions in hash tables, are the same in every run.
STOCK = replace(MACHINES["bare"], linux_args=("norandmaps",)).with_icount()

PROC = "/proc"
DBIT = "dbit"
_WITH_PARTS = (PROC, DBIT, EPML)
_FAULT_MIB = 16

LOAD = f"insmod /lib/trapless/{MODULE}.ko"
# A huge page is dirty as a whole, for every technique of a page table.
SMALL_PAGES = "echo never >/sys/kernel/mm/transparent_hugepage/enabled"


def paper_sizes(workloads: Sequence[Workload]) -> list[Row]:
    """Return the paper's sizes of programs, and the scale of ours beside them."""
    return [{"program": of.name, "sizes": of.paper, "sizes here": of.here} for of in workloads]


def _fault(technique: str) -> str:
    return f"a fault by {technique}"


def _mechanism(technique: str) -> str:
    return "proc" if technique == PROC else technique


def fault_steps(techniques: Iterable[str]) -> list[Step]:
    """Return steps that measure what a fault takes."""
    return [
        Step(_fault(name), f"dirtyparts {_mechanism(name)} {_FAULT_MIB}", 300)
        for name in techniques
        if name in _WITH_PARTS
    ]


def fault_ms(results: Mapping[str, StepResult], technique: str) -> float:
    """Return what a fault by a technique takes."""
    parts = guest.parts_row(results[_fault(technique)], _mechanism(technique))
    return float(parts["a fault"]) * NS_PER_INSTRUCTION / 1e6


def run_name(workload: Workload, size: Size, technique: str) -> str:
    """Return the name of the step, or of the part of an inner guest's script, that has one run."""
    return f"{workload.name}, {size}, {technique}"


def run_nested(context: Context, inner: Inner) -> dict[str, StepResult]:
    """Return the runs of an inner guest by their names."""
    transcript = context.run(
        "nested", OUTER, [inner.step(3000)], nested.files(inner), modules=nested.OUTER_MODULES
    )
    return nested.sections(transcript[inner.name])


def which(rows: Sequence[Row], key: str) -> str:
    """Say of which rows it does not hold."""
    bad = [found for found in rows if not found[key]]
    names = [f"{found['program']}, {found['size']}, {found['technique']}" for found in bad]
    return f"not {'; '.join(names)}" if names else f"all of {len(rows)} runs"


def shown(technique: str) -> str:
    """Return a technique's name as it is read: a model is called one."""
    return f"{technique} (model)" if technique == EPML else technique


def tracked_targets(rows: Sequence[Row], size: Size, technique: str, percent: float) -> list[Target]:
    """Return, for each program of a size, by how much it may be slower than untracked."""
    return [
        Target(
            f"{shown(technique)}: {found['program']} over untracked, %", found["overhead_percent"], percent
        )
        for found in rows
        if found["technique"] == technique and found["size"] == size
    ]


def bars(
    album: Album,
    file: str,
    rows: Sequence[Row],
    size: Size,
    techniques: Sequence[str],
    *,
    key: str,
    y: str,
    heading: str,
) -> None:
    """Draw what all programs of a size have under a key, a bar a technique."""
    at = [found for found in rows if found["size"] == size]
    album.bars(
        file,
        list(dict.fromkeys(found["program"] for found in at)),
        {
            shown(technique): [found[key] for found in at if found["technique"] == technique]
            for technique in techniques
        },
        y=y,
        title=heading,
    )
