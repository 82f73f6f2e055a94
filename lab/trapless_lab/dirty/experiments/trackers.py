# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the experiments with somebody else's tracker share (criu.py, boehm.py): the machine, the name of a
run, the nested run of SPML, and what is said and drawn of rows.

Invariant: a row is of one program, size and technique, and has all three by these names.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...experiment.experiment import Context, Row, Target
from ...experiment.plots import Album
from ...machines import nested
from ...machines.machine import MACHINES
from ...machines.nested import Inner
from ...machines.script import StepResult
from ..workloads import Size, Workload
from .guest import EPML, MODULE
from .guest_spml import OUTER

# Addresses, and so collisions in hash tables, are the same in every run.
STOCK = replace(MACHINES["bare"], linux_args=("norandmaps",)).with_icount()

LOAD = f"insmod /lib/trapless/{MODULE}.ko"
# A huge page is dirty as a whole, for every technique of a page table.
SMALL_PAGES = "echo never >/sys/kernel/mm/transparent_hugepage/enabled"


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
