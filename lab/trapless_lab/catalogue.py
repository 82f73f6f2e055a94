# SPDX-License-Identifier: Apache-2.0 OR MIT
"""All experiments of all systems.

Invariant: a file in a system's room ``experiments`` that uses the decorator is known to the command line;
nothing else has to be edited.
"""

import importlib
import pkgutil
from collections.abc import Mapping

from .dirty import experiments as dirty
from .experiment.experiment import Experiment, registered
from .pagetable import experiments as pagetable
from .power import experiments as power

_ROOMS = (dirty, pagetable, power)


def experiments() -> Mapping[str, Experiment]:
    """Return every experiment by name, in order of names."""
    for room in _ROOMS:
        for module in pkgutil.iter_modules(room.__path__):
            importlib.import_module(f"{room.__name__}.{module.name}")
    return registered()
