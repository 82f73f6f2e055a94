# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The adversarial guest of pagetable/table_test as steps: runs of seeds, their digests, their counters.

Invariant: a leg is judged by the module's exit code and by how many calls it compared, and its counters are
those of that leg alone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from machines import GUEST
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.pagetable.installed import TABLE_TEST

MODULE = TABLE_TEST
PARAMETERS = f"/sys/module/{MODULE}/parameters"
KINDS = ("map", "mmuext", "mmu_update", "update_va_mapping", "trap", "multicall", "range")
EVERY_KIND = "all,range"
AS_THEY_ARE = -1

LOST_OF_RACES = 3
"""In how many rounds of races one may lose a reference: one of so many.

Stock Xen itself leaks a reference to a table, and rarely a type, if a pin of that table is interrupted: in 1
round of 100, in 1 of 7 if processors race, and more often in a domU. A few times as many are accepted; a part
of the payload that leaked references would do so in almost every round.
"""
LOST_L1_OF_RACES = 10
"""The same for L1 tables: stock Xen leaked one in 5 of 80 legs of 30 rounds of races, and none otherwise."""

_COUNTERS = (
    "illegal leaked retired kept_data kept_l1 kept_tables "
    "tables continuations voided race_accepted race_refused ranges_served"
)
_COUNT = f"(cd {PARAMETERS} && grep . {_COUNTERS})"
_DIGEST = re.compile(
    r"seed (?P<seed>\d+) calls (?P<calls>\d+) digest (?P<digest>[0-9a-f]{16}) compared (?P<compared>\d+)"
)
_WHY = f"dmesg | grep '{MODULE}: ' | tail -4"


@dataclass(frozen=True)
class Leg:
    """The results of one pass over the seeds."""

    ok: bool
    digests: dict[int, str]
    calls: int
    compared: int
    accepted: dict[str, int]
    refused: dict[str, int]
    counters: dict[str, int]
    output: str


def leg(
    name: str,
    seeds: Iterable[int],
    rounds: int,
    mode: str,
    preempt: bool = False,
    kinds: str = "all",
    switches: int = AS_THEY_ARE,
) -> Step:
    """Return a step that runs ``seeds``; ``mode`` is record or compare, and ends at the first difference.

    ``switches`` are the parts of the payload in force while a seed runs.
    """
    command = (
        f"{_COUNT}; echo {int(preempt)} >{PARAMETERS}/preempt; echo {mode} >{PARAMETERS}/mode; "
        f"echo {kinds} >{PARAMETERS}/kinds; echo {switches} >{PARAMETERS}/switches; "
        f"for seed in {' '.join(map(str, seeds))}; do "
        f"echo $seed {rounds} >{PARAMETERS}/run || {{ {_WHY}; false; }}; rc=$?; cat {PARAMETERS}/digest; "
        f"[ $rc = 0 ] || break; done; echo {AS_THEY_ARE} >{PARAMETERS}/switches; {_COUNT}; exit $rc"
    )
    return Step(name, command, timeout_s=1800, expect=None)


def race(name: str, seeds: Iterable[int], rounds: int) -> Step:
    """Return a step in which all processors work on the same tables."""
    command = (
        f"{_COUNT}; for seed in {' '.join(map(str, seeds))}; do "
        f"echo $seed {rounds} >{PARAMETERS}/race || {{ {_WHY}; exit 1; }}; done; {_COUNT}"
    )
    return Step(name, command, timeout_s=1800, expect=None)


def broken(variant: str, seed: int, rounds: int, kinds: str, switches: int) -> list[Step]:
    """Return steps that compare a payload without one of its checks with stock Xen.

    A process that ends under such a payload may crash the machine. So the shell that waits for the payload
    starts none, and its switches are on only while the module runs: a run before the payload is applied
    fails, the runs after that are compared.
    """
    p = PARAMETERS
    command = (
        f"cd {p}; echo off >mode; echo 0 >preempt; echo {kinds} >kinds; "
        f"echo record >mode; echo {seed} {rounds} >run && "
        f"xen-livepatch upload {variant} {GUEST}/{variant}.livepatch && echo {switches} >switches || exit 1; "
        f"xen-livepatch apply {variant} & i=0; "
        f"while [ $i -lt 500 ]; do echo compare >mode; echo {seed} {rounds} >run; read d <differs; "
        f"[ $d = N ] || break; i=$((i+1)); done 2>/dev/null; wait; "
        f"echo {AS_THEY_ARE} >switches; echo all >kinds; cat digest; {_WHY}; [ $d = Y ]"
    )
    return [
        Step(f"run {variant}", command, timeout_s=600, expect=None),
        Step(f"unload {variant}", f"xen-livepatch revert {variant} && xen-livepatch unload {variant}"),
    ]


def lost_of_races(rounds: int) -> tuple[int, int]:
    """Return how many references to tables, and to L1 tables, so many rounds may lose beyond stock's."""
    return rounds // LOST_OF_RACES, rounds // LOST_L1_OF_RACES


def parse(result: StepResult) -> Leg:
    """Return what the step of a leg or a race printed."""
    runs = list(_DIGEST.finditer(result.output))
    totals = {kind: [0, 0] for kind in KINDS}
    for kind, accepted, of in re.findall(r" ([a-z_]+) (\d+)/(\d+)", result.output):
        if kind in totals:
            totals[kind][0] += int(accepted)
            totals[kind][1] += int(of) - int(accepted)
    counters: dict[str, int] = {}
    for name, value in re.findall(r"^(\w+):(\d+)$", result.output, re.MULTILINE):
        counters[name] = int(value) - counters[name] if name in counters else int(value)
    return Leg(
        ok=result.rc == 0,
        digests={int(run["seed"]): run["digest"] for run in runs},
        calls=sum(int(run["calls"]) for run in runs),
        compared=int(runs[-1]["compared"]) if runs else 0,
        accepted={kind: total[0] for kind, total in totals.items()},
        refused={kind: total[1] for kind, total in totals.items()},
        counters=counters,
        output=result.output,
    )


def require_nothing_left(leg: Leg, stock: Leg, lost: int, lost_l1: int = 0) -> None:
    """Require no illegal entry, nothing left on a data page, and at most ``lost`` more references to tables
    than stock Xen leaks, of which ``lost_l1`` to L1 tables.
    """
    for counter in ("illegal", "leaked", "kept_data"):
        assert leg.counters[counter] == 0, f"{counter}: {leg.output}"
    for counter, more in (("retired", lost), ("kept_l1", lost_l1), ("kept_tables", lost)):
        assert leg.counters[counter] <= stock.counters[counter] + more, f"{counter}: {leg.output}"
