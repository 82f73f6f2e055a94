# SPDX-License-Identifier: Apache-2.0 OR MIT
"""All experiments of all systems, and what the demonstration shows of each.

Invariant: a file in a system's room ``experiments`` that uses the decorator is known to the command line;
nothing else has to be edited.
"""

import importlib
import pkgutil
from collections.abc import Mapping

from .dirty import claims as dirty_claims
from .dirty import experiments as dirty
from .experiment.claim import Part
from .experiment.experiment import Experiment, registered
from .pagetable import claims as pagetable_claims
from .pagetable import experiments as pagetable
from .power import claims as power_claims
from .power import experiments as power

_ROOMS = (dirty, pagetable, power)


def experiments() -> Mapping[str, Experiment]:
    """Return every experiment by name, in order of names."""
    for room in _ROOMS:
        for module in pkgutil.iter_modules(room.__path__):
            importlib.import_module(f"{room.__name__}.{module.name}")
    return registered()


def parts() -> Mapping[str, Part]:
    """Return the parts of the demonstration by name, in the order in which they are shown."""
    return {part.name: part for part in (pagetable_claims.PART, dirty_claims.PART, power_claims.PART)}
