# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Targets whose figure is another one than in the results that a report replaces: no test compares a change
with the version before it, so what it costs is seen here.
"""

from collections.abc import Mapping
from typing import Any

from .kept import Kept

LEAST_PERCENT = 1.0


def since(before: Mapping[str, Kept], found: Mapping[str, Kept]) -> list[str]:
    """Return a sentence for each target that moved by ``LEAST_PERCENT`` or more, the worse ones first.

    Only full results are compared with full ones, and quick ones with quick ones.
    """
    moved = []
    for experiment, new in found.items():
        old = before.get(experiment)
        if old is None or old.quick != new.quick:
            continue
        figures = _figures(old)
        for name, figure in _figures(new).items():
            was = figures.get(name)
            if was is None or abs(figure - was) < abs(was) * LEAST_PERCENT / 100 or figure == was:
                continue
            word = "worse" if figure > was else "better"
            moved.append((word, f"{experiment}, {name}: {figure:,g}, {was:,g} at {old.commit}"))
    return [f"{word}: {sentence}" for word, sentence in sorted(moved, key=lambda one: one[0] != "worse")]


def _figures(kept: Kept) -> dict[str, float]:
    """Return what was measured for each target; less is better."""
    targets: list[Any] = kept.result["targets"] if kept.result else []
    return {target["name"]: target["measured"] for target in targets}
