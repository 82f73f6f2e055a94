# SPDX-License-Identifier: Apache-2.0 OR MIT
"""OoH's formulas, on the paper's own numbers."""

import pytest

from trapless_lab.dirty import formulas
from trapless_lab.dirty.formulas import Parts

# The slides' table for SPML, in milliseconds.
SPML = Parts(tracked=0, finding={"copy": 0.49, "disable": 2.06, "reverse mapping": 5419.0}, processing=251.35)


def test_the_papers_tracker() -> None:
    estimated = formulas.tracker(SPML)
    assert estimated == pytest.approx(5672.9)
    assert formulas.accuracy(estimated, 5503.79) == pytest.approx(96.93, abs=0.01)


def test_faults_add_to_the_trackeds_cost() -> None:
    parts = Parts(tracked=100, finding={"walk": 10, "clear": 5}, processing=20, fault=3, faults=7)
    assert formulas.tracker(parts) == 35
    assert formulas.tracked_and_tracker(parts) == 100 + 35 + 21


def test_too_high_an_estimate_is_as_inaccurate_as_too_low_a_one() -> None:
    assert formulas.accuracy(110, 100) == pytest.approx(90) == formulas.accuracy(90, 100)
    assert formulas.accuracy(100, 100) == 100
    with pytest.raises(ValueError, match="nothing was measured"):
        formulas.accuracy(1, 0)
