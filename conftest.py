# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How the tests are shared out between two workers (``--dist loadgroup``).

Invariant: the tests of a file stay together, for they share a boot; only the experiments, each of which boots
machines of its own, may run apart from each other.
"""

import pytest

APART = "test_experiments.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each test's group."""
    for item in items:
        group = item.name if item.path.name == APART else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
