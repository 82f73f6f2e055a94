# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The calls of tests/module/hypercall_test.c and hypercall_fuzz.c as steps, and what QEMU must have seen.

Invariant: a case is judged by its module's exit code. A run of random calls is judged by its own, which is
the model's verdict on every answer, and by the flushes of QEMU's trace, of which the model and the trace know
nothing from each other.
"""

import re

from machines import insmod
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.trace import Counts

TEST = "hypercall_test"
MODULE = "hypercall_fuzz"
# What an interface without switches promises as well: all but the versions of parts.
PROMISES = (
    "unknown_operation",
    "other_operations",
    "older_module",
    "bad_pointer",
    "bad_count",
    "not_ours",
    "twice",
    "page_table",
    "xen_page",
    "bad_in_the_middle",
    "contents",
)
# Of these, what expects only refusals, which stock Xen gives, too.
PASS_ON_STOCK = ("unknown_operation", "other_operations", "older_module")
# Cycles of marking and releasing that TEST makes in one case.
CYCLES = 100
# A call of many pages moves at least this many on average, even if interrupted: one flush serves them all.
FEWEST_PAGES_A_CALL = 64
# At most what a step's shell costs on stock Xen: flushes of whole domains, and of single pages.
NOISE = 20
PAGE_NOISE = 3 * NOISE

_TEST_PARAMETERS = f"/sys/module/{TEST}/parameters"
_PARAMETERS = f"/sys/module/{MODULE}/parameters"
_COUNTERS = "domain_flushes page_flushes moved refused cut_short"


def run_case(case: str) -> str:
    """Return the command that makes the calls of a case of TEST; a wrong answer is its failure."""
    return f"echo {case} >{_TEST_PARAMETERS}/run || {{ dmesg | tail -5; false; }}"


def cycle(length: int) -> Step:
    """Return a step that marks and releases so many pages, and prints the calls that it took."""
    # Shell built-ins only: each further process would cause flushes.
    case = f"cycle_{length}"
    run = f"echo {case} >{_TEST_PARAMETERS}/run && read -r calls <{_TEST_PARAMETERS}/calls && echo $calls"
    return Step(case, run)


def one_flush_a_call(result: StepResult, counts: Counts, length: int) -> bool:
    """Whether QEMU saw one flush of the domain for each call that a cycle made."""
    if result.rc:
        return False
    calls = int(result.output)
    # After a softirq has cut a call short, it is repeated for the rest; how often depends on the clock.
    return (
        2 * CYCLES <= calls <= 2 * CYCLES * max(1, length // FEWEST_PAGES_A_CALL)
        and calls <= counts.domain <= calls + NOISE
        and counts.everything == 0
    )


def random_calls(name: str, calls: int, parameters: str = "") -> list[Step]:
    """Return steps that load the fuzzing module, make calls of one seed, and remove it."""
    loaded = insmod(MODULE, parameters, name=f"load for {name}")
    return [loaded, fuzz(name, 1, calls), Step(f"end of {name}", f"rmmod {MODULE}")]


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
