# SPDX-License-Identifier: Apache-2.0 OR MIT
"""OoH's formulas: what tracking costs, put together from its parts (slides of OoH, "Evaluations: EPML").

    E(C_tker)      = E(C_x) + E(C_p) + I(C_x, C_p)
    E(C_tked_tker) = E(C_tked) + E(C_tker) + I(C_x, C_tked)

tker is the tracker, tked the tracked, x the technique (what finds dirty pages), p what the tracker wants them
for; I is what one makes the other cost. Here tracker and tracked take turns on one processor.

Invariant: an estimate is made of parts alone, never of the whole that it is held against; every cost has one
unit, whichever it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """The parts of one round: the tracked's writes without tracking, each step of finding, what the tracker
    does with what it found, and what one fault adds to the tracked, times how many there were.
    """

    tracked: float
    finding: Mapping[str, float]
    processing: float
    fault: float = 0
    faults: int = 0

    @property
    def interference(self) -> float:
        """I(C_x, C_tked). I(C_x, C_p) is nothing: the tracker's own memory is not watched."""
        return self.fault * self.faults


def tracker(parts: Parts) -> float:
    """Return E(C_tker)."""
    return sum(parts.finding.values()) + parts.processing


def tracked_and_tracker(parts: Parts) -> float:
    """Return E(C_tked_tker), from the estimate of the tracker."""
    return parts.tracked + tracker(parts) + parts.interference


def accuracy(estimated: float, measured: float) -> float:
    """Return how near an estimate comes, in percent."""
    if measured <= 0:
        raise ValueError("nothing was measured")
    return 100 * (1 - abs(estimated - measured) / measured)
