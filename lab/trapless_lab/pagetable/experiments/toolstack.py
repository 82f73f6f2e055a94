# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a toolstack costs dom0: the stock xl creates and destroys a small PV domU, started as xapi starts its
helpers.

Invariant: the domU is created paused and never runs, so that all instructions are dom0's, and Xen's on its
behalf; time in which dom0 waits is not counted (guest/soaked.c).
"""

from collections.abc import Sequence
from statistics import median

from ... import host
from ...experiment.experiment import BeforeAfter, Context, Result, Row, experiment, machine_facts
from ...experiment.workload import NS_PER_INSTRUCTION, instructions_on
from ...machines import domu
from ...machines.domu import DomU
from ...machines.script import Step
from ...machines.transcript import Transcript
from .. import columns
from .. import parts as pagetable
from ..columns import STRICT

TIMES = 50
QUICK_TIMES = 5
SMALL_MIB = 128
STATES = ("stock", "boosted")
WHAT = ("create", "destroy")

# What a helper costs beside its own work: a command that does nothing, started in the same way.
NOTHING_TIMES = 50

_GUEST = DomU(memory_mib=SMALL_MIB)
_CREATED = f"xl create -p /domu/{_GUEST.name}.cfg"
_DESTROYED = f"xl destroy {_GUEST.name}"


def _label(state: str, what: str, run: int) -> str:
    return f"{state}: {what} {run + 1}"


def _steps(state: str, times: int) -> list[Step]:
    """Return the steps of a state: one process a helper, as xapi has it."""

    def soaked(command: str) -> str:
        return f"soaked forkexecd 1 {command}"

    rounds = [
        step
        for run in range(times)
        for step in (
            Step(_label(state, "create", run), soaked(_CREATED), timeout_s=300),
            # Its name is free when all of its memory is.
            Step(_label(state, "destroy", run), f"{soaked(_DESTROYED)} && {_GUEST.gone()}", timeout_s=300),
        )
    ]
    return [*rounds, Step(_label(state, "nothing", 0), f"soaked forkexecd {NOTHING_TIMES} nothing")]


def _taken(transcript: Transcript, state: str, what: str, times: int) -> list[int]:
    return [instructions_on(transcript[_label(state, what, run)]) for run in range(times)]


@experiment(
    name="toolstack",
    accelerator="pagetable",
    title="xl creates and destroys a PV domU",
    reproduces="nothing of the papers: what a toolstack costs dom0",
    minutes=10,
)
def toolstack(context: Context) -> Result:
    """Measure in a strict dom0, stock and boosted."""
    times = QUICK_TIMES if context.quick else TIMES
    parts = pagetable.everything(STRICT)
    stock, boosted = (_steps(state, times) for state in STATES)
    transcript = context.run(
        "toolstack",
        STRICT,
        # Once before: what is read for the first time is not in memory.
        [domu.toolstack(), *_steps("warm-up", 1), *stock, *pagetable.load_steps(parts), *boosted],
        {**domu.tree(_GUEST), **pagetable.files(parts, context.pair)},
        modules=domu.MODULES,
    )
    taken = {state: {what: _taken(transcript, state, what, times) for what in WHAT} for state in STATES}
    medians = {
        state: {what: int(median(values)) for what, values in each.items()} for state, each in taken.items()
    }
    for state in STATES:
        medians[state]["both"] = sum(medians[state].values())
        alone = instructions_on(transcript[_label(state, "nothing", 0)])
        medians[state]["nothing"] = alone // NOTHING_TIMES
    return Result(
        unit="instructions",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction, waiting left out; median of {times}; "
        f"xl from Debian's Xen, a domU of {SMALL_MIB} MiB with the stock kernel, created paused; each xl is "
        "started by two forks and an exec, as xapi's forkexecd does; nothing: the same with a program that "
        "does nothing; one boot, before and after loading",
        rows=[_row(medians, taken, what) for what in (*WHAT, "both", "nothing")],
        paper=[],
        checks=[
            columns.no_slower(
                "boosted", {what: (medians["stock"][what], medians["boosted"][what]) for what in WHAT}
            )
        ],
        machine=machine_facts([STRICT], host.versions()),
        keys=medians,
        summary=[
            BeforeAfter(
                "xl creates and destroys a small domU, instructions of dom0",
                f"{medians['stock']['both']:,}",
                f"{medians['boosted']['both']:,}",
                f"a helper that does nothing: {medians['stock']['nothing']:,}, then "
                f"{medians['boosted']['nothing']:,}",
            )
        ],
    )


def _row(medians: dict[str, dict[str, int]], taken: dict[str, dict[str, list[int]]], what: str) -> Row:
    stock, boosted = (medians[state][what] for state in STATES)
    values: Sequence[Sequence[int]] = [taken[state].get(what, [0]) for state in STATES]
    return {
        "what": what,
        "stock": stock,
        "boosted": boosted,
        "faster_percent": round(100 * (stock - boosted) / stock, 1),
        "spread": max(max(v) - min(v) for v in values),
    }
