# SPDX-License-Identifier: Apache-2.0 OR MIT
"""OoH's formulas: the cost of tracking, from the costs of its parts (slides of OoH, "Evaluations: EPML").

    E(C_tker)      = E(C_x) + E(C_p) + I(C_x, C_p)
    E(C_tked_tker) = E(C_tked) + E(C_tker) + I(C_x, C_tked)

tker is the tracker, tked the tracked, x the technique (what finds dirty pages), p the tracker's processing of
them; I is what one adds to the other's cost. Here tracker and tracked take turns on one processor.

Invariant: an estimate uses only costs of parts, never the whole with which it is compared; all costs have
the same unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """The costs of one round: the tracked's writes without tracking, each step of finding, the processing of
    the pages found, and one fault's addition to the tracked, with the number of faults.
    """

    tracked: float
    finding: Mapping[str, float]
    processing: float
    fault: float = 0
    faults: int = 0

    @property
    def interference(self) -> float:
        """I(C_x, C_tked). I(C_x, C_p) is 0: the tracker's own memory is not watched."""
        return self.fault * self.faults


def tracker(parts: Parts) -> float:
    """Return E(C_tker)."""
    return sum(parts.finding.values()) + parts.processing


def tracked_and_tracker(parts: Parts) -> float:
    """Return E(C_tked_tker), from the estimate of the tracker."""
    return parts.tracked + tracker(parts) + parts.interference


def accuracy(estimated: float, measured: float) -> float:
    """Return the accuracy of an estimate, in percent."""
    if measured <= 0:
        raise ValueError("nothing was measured")
    return 100 * (1 - abs(estimated - measured) / measured)
