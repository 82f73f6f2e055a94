# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The records of a run.

Invariant: everything in a transcript was recorded outside the guest, and does not change afterwards.
"""

import re
from dataclasses import dataclass

from . import trace
from .machine import Machine
from .script import StepResult

_WARNING = re.compile(
    r"\bWARNING:|\bBUG:|\bOops\b|Bad page|rcu.*stall|possible (?:circular|recursive) locking|"
    r"inconsistent lock state|INFO: task .* blocked|Assertion .* failed|Xen (?:BUG|WARN)|\bUBSAN\b|"
    r"general protection fault|refcount_t"
)

# Warnings that are normal here: Xen's about its mode, and Linux's about emulated processors, without
# microcode or with what real ones are vulnerable to.
_REMARK = re.compile(
    "WARNING: PVH is an experimental mode with limited functionality|"
    "Speculative Return Stack Overflow: WARNING: See https:|"
    "RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks"
)


@dataclass(frozen=True)
class Transcript:
    """All records of a run."""

    machine: Machine
    results: tuple[StepResult, ...]
    buckets: tuple[trace.Bucket, ...]
    console: str

    def __getitem__(self, name: str) -> StepResult:
        return self.results[self.index(name)]

    def index(self, name: str) -> int:
        """Return the position of the first step called ``name``."""
        for position, result in enumerate(self.results):
            if result.step.name == name:
                return position
        raise KeyError(name)

    def counts(self, name: str) -> trace.Counts:
        """Return the counts of QEMU's IOMMU during a step."""
        position = self.index(name)
        return trace.total(bucket for bucket in self.buckets if bucket.step == position)

    def kernel_warnings(self) -> list[str]:
        """Return the console lines with warnings of Linux or Xen."""
        return complaints(self.console)


def complaints(console: str) -> list[str]:
    """Return the lines of a console with warnings of a kernel."""
    return [line for line in console.splitlines() if _WARNING.search(line) and not _REMARK.search(line)]
