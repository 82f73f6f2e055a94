# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the experiments of a report: as many at a time as there are processors, those that measure this host's
own time alone and last.

Invariant: one that fails, however, is kept as a failure, and the others are run; what ended is kept at once.
"""

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ..errors import LabError
from ..experiment import report
from ..experiment.experiment import Context, Experiment
from ..overall import Overall, Unit, each_done
from . import kept
from .kept import Kept
from .sources import Sources

# Of a full run's time, about; what is known of an earlier run is better.
QUICK_SHARE = 0.3


@dataclass(frozen=True)
class Order:
    """What is to be made, where it is kept, and by which sources."""

    folder: Path
    sources: Sources
    quick: bool


def expected_s(experiment: Experiment, before: Kept | None, *, quick: bool) -> float:
    """Return how long it will take, about."""
    if before is not None and before.quick == quick and before.result is not None:
        return before.seconds
    return experiment.minutes * 60 * (QUICK_SHARE if quick else 1)


def make(
    experiments: Sequence[Experiment],
    before: Mapping[str, Kept],
    order: Order,
    shown: Overall,
    at_a_time: int,
) -> dict[str, Kept]:
    """Run experiments and return how each went; ``before``: what an earlier run kept."""
    expected = {one.name: expected_s(one, before.get(one.name), quick=order.quick) for one in experiments}
    longest_first = sorted(experiments, key=lambda one: -expected[one.name])
    units = {one.name: shown.add(one.name, expected[one.name]) for one in longest_first}
    found = {}
    for alone in (False, True):
        work = {
            one.name: partial(_take, one, units[one.name], order)
            for one in longest_first
            if one.alone == alone
        }
        for name, future in each_done(work, shown, 1 if alone else at_a_time):
            found[name] = future.result()
            kept.save(order.folder, found[name])
    return found


def _take(experiment: Experiment, unit: Unit, order: Order) -> Kept:
    began, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    result, failure = None, ""
    try:
        with unit:
            made = experiment.run(Context(order.quick, unit, shared=not experiment.alone))
            result = report.as_json(experiment, made)
    except LabError as error:
        failure = str(error) or "no reason is known"
    except Exception:  # a defect of one experiment must not cost the others' results
        failure = traceback.format_exc()
    return Kept(
        experiment.name,
        order.quick,
        order.sources.commit,
        order.sources.digests[experiment.name],
        began,
        round(time.monotonic() - start, 1),
        os.cpu_count() or 1,
        result,
        failure,
    )
