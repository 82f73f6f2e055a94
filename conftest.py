# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How the tests are shared out between two workers (``-n 2``).

Invariant: the tests of a file stay together, for they share a boot; only the experiments, each of which boots
machines of its own, may run apart from each other. What takes longest comes first.

A scheduler of our own, for ``--dist loadgroup`` of pytest-xdist 3.8 does not group under pytest 9.2
(pytest-xdist issue 1386), and says nothing.
"""

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from trapless_lab.releases import INSTALLED_PAIR

APART = "test_experiments.py"

# An example that takes long says something of the host, not of the code.
settings.register_profile("busy-host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy-host")

# Those that take more than a minute, by what they took: each starts before all that take less.
DEAREST = (
    "test_oracle_guest.py",
    "test_debian13_xen.py",
    "test_later_kernels.py",
    "test_arm64.py",
    "test_epml.py",
    "test_pvmmu.py",
    "test_smp.py",
    "test_domu_pool.py",
    "test_module_oracle.py",
    "test_pool_robustness.py",
    "test_lifecycle.py",
    "test_tables_differential.py",
    "test_experiments.py::test_runs_and_holds[power-exits]",
    "test_kvm_guest.py",
    "test_domu.py",
    "test_pairs.py",
    "test_criu_guest.py",
    "test_accounting.py",
    "test_module.py",
    "test_payload_verdicts.py",
    "test_tool.py",
    "test_verify.py",
)


def group(test: str) -> str:
    """Return what a test, named as pytest does, is kept together with."""
    path, _, name = test.partition("::")
    file = path.rpartition("/")[2]
    return f"{file}::{name}" if file == APART else path


def _rank(item: pytest.Item) -> int:
    unit = group(item.nodeid).rpartition("/")[2]
    return DEAREST.index(unit) if unit in DEAREST else len(DEAREST)


class _Groups(LoadScopeScheduling):
    """Hands out groups in the order of their first test."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the dearest first. What is left out must say why."""
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
