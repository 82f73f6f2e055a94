# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest program ``spawn``: its steps and what it prints.

Invariant: the records parsed here are the ones guest/spawn.c documents; a missing record is an error.
"""

import re

from .errors import LabError
from .script import StepResult

NS_PER_INSTRUCTION = 2
"""What -icount shift=1 makes the guest's clock charge."""

MODES = {"fork_exit": "fork-exit", "fork_exec": "fork-exec", "fork_sh": "fork-sh"}
"""Record name -> argument of spawn."""


def ns_per_process(result: StepResult, record: str) -> int:
    """Return the mean of one process."""
    found = re.search(rf"^{record} ns=(\d+) n=\d+$", result.output, re.MULTILINE)
    if found is None:
        raise LabError(f'step "{result.step.name}" printed no {record}:\n{result.output}')
    return int(found[1])


def tick_ns(result: StepResult) -> list[int]:
    """Return when each tick was written, since the workload's start."""
    return [int(ns) for ns in re.findall(r"^tick ns=(\d+)$", result.output, re.MULTILINE)]
