# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How the tests are shared out between two workers (``-n 2``).

Invariant: the tests of a file stay together, for they share a boot; only the experiments, each of which boots
machines of its own, may run apart from each other. What takes longest comes first: one worker takes the tests
from their beginning, the other from their end, and they meet at what takes least.

A scheduler of our own, for ``--dist loadgroup`` of pytest-xdist 3.8 does not group under pytest 9.2
(pytest-xdist issue 1386), and says nothing.
"""

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from trapless_lab.releases import INSTALLED_PAIR

APART = "test_experiments.py"

# An example that takes long says something of the host, not of the code.
settings.register_profile("busy-host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy-host")

# Files whose machines mostly have two processors, and others, each by what they take: the dearest first. On a
# host with two processors a machine with two is four times as slow beside another such machine, and twice as
# slow beside one with one processor; so the first worker begins with the former, the second with the latter.
TWO_PROCESSORS = (
    "test_pvmmu.py",
    "test_module_oracle.py",
    "test_later_kernels.py",
    "test_arm64.py",
    "test_oracle_guest.py",
    "test_criu_guest.py",
    "test_module.py",
    "test_epml.py",
    "test_smp.py",
)
ONE_PROCESSOR = (
    "test_lifecycle.py",
    "test_verify.py",
    "test_tables_differential.py",
    "test_tool.py",
    "test_domu_pool.py",
    "test_pairs.py",
    "test_debian13_xen.py",
    "test_pool_robustness.py",
    "test_units.py",
    "test_payload_verdicts.py",
    "test_known_kernels.py",
    "test_translated_guest.py",
)
# Long files that boot no machine: begun early, so that none is left when all others are done.
WITHOUT_MACHINES = (
    "test_known_functions.py",
    "test_probe.py",
    "test_find_zero_runs.py",
    "test_claims.py",
    "test_linux_patches.py",
)
FIRST = (*WITHOUT_MACHINES, *TWO_PROCESSORS)


def group(test: str) -> str:
    """Return what a test, named as pytest does, is kept together with."""
    path, _, name = test.partition("::")
    file = path.rpartition("/")[2]
    return f"{file}::{name}" if file == APART else path


def _rank(item: pytest.Item) -> int:
    file = item.path.name
    if file in ONE_PROCESSOR:
        return len(FIRST) + len(ONE_PROCESSOR) - ONE_PROCESSOR.index(file)
    return FIRST.index(file) if file in FIRST else len(FIRST)


class _Groups(LoadScopeScheduling):
    """Hands out groups from both ends of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not min(self.nodes, key=lambda node: int(node.gateway.id.removeprefix("gw"))):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the dearest at both ends. What is left out must say why."""
    for item in items:
        for name in ("long", "not_fast", "debian12"):
            mark = item.get_closest_marker(name)
            if mark and not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: {name} without a reason")
            if mark and name == "debian12" and name != INSTALLED_PAIR:
                item.add_marker(pytest.mark.skip(reason=f"not on {INSTALLED_PAIR}: {mark.args[0]}"))
    items.sort(key=_rank)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return what shares out the tests."""
    config.option.loadscopereorder = False
    return _Groups(config, log)
