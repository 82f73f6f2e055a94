# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The random calls of tests/module/hypercall_fuzz.c as steps, and what QEMU must have seen of them.

Invariant: a run is judged by the module's exit code, which is the model's verdict on every answer, and by the
flushes of QEMU's trace, of which the model and the trace know nothing from each other.
"""

import re

from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.trace import Counts

MODULE = "hypercall_fuzz"
# At most what a step's shell costs on stock Xen: flushes of whole domains, and of single pages.
NOISE = 20
PAGE_NOISE = 3 * NOISE

_PARAMETERS = f"/sys/module/{MODULE}/parameters"
_COUNTERS = "domain_flushes page_flushes moved refused cut_short"


def fuzz(name: str, seed: int, calls: int, timeout_s: float = 600) -> Step:
    """Return a step that makes random calls; no process starts in it, as that would flush too."""
    command = (
        f"cd {_PARAMETERS}; echo {seed} {calls} >run; rc=$?; "
        f"for c in {_COUNTERS}; do read -r v <$c; echo $c=$v; done; "
        f"[ $rc = 0 ] || {{ dmesg | grep {MODULE}: | tail -4; false; }}"
    )
    return Step(name, command, timeout_s, expect=None)


def counters(result: StepResult) -> dict[str, int]:
    """Return the module's counters, over all runs since it was loaded."""
    return {name: int(value) for name, value in re.findall(r"^(\w+)=(\d+)$", result.output, re.MULTILINE)}


def seen_by_qemu(result: StepResult, counts: Counts) -> bool:
    """Whether the first run since the module was loaded made the flushes the model wants and no others."""
    counted = counters(result)
    return (
        counted["domain_flushes"] <= counts.domain <= counted["domain_flushes"] + NOISE
        and counted["page_flushes"] <= counts.pages <= counted["page_flushes"] + PAGE_NOISE
        and counts.everything == 0
    )
