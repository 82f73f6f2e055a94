# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Memory that a translated guest's kernel has freed at the end of its boot is ordinary memory: sites there
are undone when the kernel overwrites them, and processes read what they write."""

import re

import pytest

from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

MODE_NAMES = ("base", "inplace")


THRESHOLD = "/sys/module/kvm/parameters/bt_threshold"


@pytest.fixture(scope="module")
def console() -> power.Console:
    # All memory is written, so there is less of it.
    vms = [Vm(name, MODES[name], "mem=40M run=memory") for name in MODE_NAMES]
    # Code of the boot runs once or twice only, so translate it at once.
    script = [f"write {THRESHOLD} 1", *power.one_after_another(vms)]
    return power.in_host(script, how=How(timeout_s=300))


@pytest.mark.parametrize("label", MODE_NAMES)
def test_processes_read_what_they_write_there(console: power.Console, label: str) -> None:
    """All free memory was written; some of it had been the kernel's init code and data."""
    freed = re.findall(r"^freed (\d+)$", console.of(label).text, re.MULTILINE)
    assert len(freed) == 1 and int(freed[0]) > 0


def test_the_sites_there_were_undone(console: power.Console) -> None:
    """Nothing else in this guest changes code, and no fragment was evicted."""
    counters = console.statistics("inplace")
    assert counters["bt_undone"] > 0 and counters["bt_evicted"] == 0
    assert counters["bt_sites"] == counters["bt_patched"] - counters["bt_undone"]
