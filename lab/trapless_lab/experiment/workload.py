# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Parses the output of the guest programs that measure.

Invariant: the records parsed here are the ones that guest/spawn.c, guest/forkdirty.c, guest/pvops.c,
guest/interval.h and guest/soaked.c document; a missing record is an error.
"""

import re

from ..errors import LabError
from ..machines.script import StepResult

NS_PER_INSTRUCTION = 2
"""The guest's clock with -icount shift=1."""

MODES = {"fork_exit": "fork-exit", "fork_exec": "fork-exec", "fork_sh": "fork-sh"}
"""Record name -> argument of spawn."""


FORK_DIRTY = ("fork", "exit", "redirty", "copied")
"""What guest/forkdirty.c times."""


def ns_per_process(result: StepResult, record: str) -> int:
    """Return the mean of one process, over all loops if the step ran several."""
    found = [int(ns) for ns in re.findall(rf"^{record} ns=(\d+) n=\d+$", result.output, re.MULTILINE)]
    if not found:
        raise LabError(f'step "{result.step.name}" printed no {record}:\n{result.output}')
    return sum(found) // len(found)


def tick_ns(result: StepResult) -> list[int]:
    """Return when each tick was written, since the workload's start."""
    return [int(ns) for ns in re.findall(r"^tick ns=(\d+)$", result.output, re.MULTILINE)]


def fork_dirty_ns(result: StepResult, pages: int) -> dict[str, int]:
    """Return the cost of a fork with so many dirty pages: each of ``FORK_DIRTY``."""
    fields = " ".join(rf"{name}=(\d+)" for name in FORK_DIRTY)
    found = re.search(rf"^fork_dirty pages={pages} {fields} n=\d+$", result.output, re.MULTILINE)
    if found is None:
        raise LabError(f'step "{result.step.name}" printed no fork_dirty of {pages}:\n{result.output}')
    return dict(zip(FORK_DIRTY, map(int, found.groups()), strict=True))


def operations_ns(result: StepResult) -> dict[str, float]:
    """Return the mean of each of pvops' operations."""
    found = re.findall(r"^(\w+) ns=(\d+) n=(\d+)$", result.output, re.MULTILINE)
    if not found:
        raise LabError(f'step "{result.step.name}" printed no operation:\n{result.output}')
    return {name: int(ns) / int(n) for name, ns, n in found}


def operations_counts(result: StepResult) -> dict[str, int]:
    """Return how often each of pvops' operations was measured."""
    found = re.findall(r"^(\w+) ns=\d+ n=(\d+)$", result.output, re.MULTILINE)
    return {name: int(n) for name, n in found}


def intervals(result: StepResult) -> list[str]:
    """Return the names of the intervals that the step's programs marked, in the order in which they ended."""
    return re.findall(r"^profiled ns=\d+\nof (\S+)$", result.output, re.MULTILINE)


def instructions_on(result: StepResult) -> int:
    """Return the machine's instructions for the one command that the step ran under soaked."""
    found = re.findall(r"^soaked ns=(\d+) idle=(\d+)$", result.output, re.MULTILINE)
    if len(found) != 1:
        raise LabError(f'step "{result.step.name}" printed {len(found)} records of soaked:\n{result.output}')
    ns, idle = map(int, found[0])
    return ns // NS_PER_INSTRUCTION - idle
