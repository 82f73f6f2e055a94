# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Steps in each state of one domU: stock, with the payload in Xen, and with the module in the domU as well.

Invariant: the states are in one boot, in this order, so they differ only in what was loaded; each state
includes the one before it. The domU's console is printed last, for ``domu.require_quiet``.
"""

from collections.abc import Mapping, Sequence

from ..machines import domu
from ..machines.domu import DomU
from ..machines.initramfs import Tree
from ..machines.script import Step
from . import parts as pagetable

STATES = ("stock", "payload", "boosted")
_PAYLOAD, _MODULE = [pagetable.PAYLOAD_PART], [pagetable.PVMMU_PART]


def steps(guest: DomU, measured: Mapping[str, Sequence[Step]]) -> list[Step]:
    """Return the steps of dom0 that start ``guest``, run in it what is measured in each state, and end it."""
    before = {
        "stock": [],
        "payload": pagetable.load_steps(_PAYLOAD),
        "boosted": [guest.inside(step) for step in pagetable.load_steps(_MODULE)],
    }
    script = [domu.toolstack(), guest.create()]
    for state in STATES:
        script += [*before[state], *(guest.inside(step) for step in measured.get(state, ()))]
    return [*script, domu.console(), guest.destroy()]


def files_inside() -> Tree:
    """Return what the domU must have for it."""
    return pagetable.files(_MODULE)


def files(guest: DomU) -> Tree:
    """Return what dom0 must have for it."""
    return {**domu.tree(guest), **pagetable.files(_PAYLOAD)}
