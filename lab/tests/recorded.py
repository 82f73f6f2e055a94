# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Logs of real runs, kept in data/; see data/README for what was run."""

from pathlib import Path

from trapless_lab.machines.script import Step, StepLog

DATA = Path(__file__).parent / "data"

# xen-*.log: these steps on xen-strict with icount.
STEPS = [
    Step("bytes", r"printf 'a\000b\377 no newline'"),
    Step("workload", "spawn fork-exit -n 6 -k 2"),
    Step("marked", "mark half; echo 'two\nlines'; mark rest"),
    Step("failing", "exit 3", expect=3),
]
NONCE = "5556c976f5e98e09"


def step_log() -> StepLog:
    """Return the parsed step log of the run."""
    log = StepLog(STEPS, NONCE)
    log.feed((DATA / "xen-steps.log").read_bytes())
    return log
