# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Memory that a translated guest's kernel has freed at the end of its boot is memory like any other: the
kernel has overwritten the code there, and what processes write later they read."""

import re

import pytest

from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

MODE_NAMES = ("base", "inplace")


THRESHOLD = "/sys/module/kvm/parameters/bt_threshold"


@pytest.fixture(scope="module")
def console() -> power.Console:
    # All memory is written, so let it be less.
    vms = [Vm(name, MODES[name], "mem=40M run=memory") for name in MODE_NAMES]
    # Code that runs at the start runs once or twice.
    script = [f"write {THRESHOLD} 1", *power.one_after_another(vms)]
    return power.in_host(script, how=How(timeout_s=300))


@pytest.mark.parametrize("label", MODE_NAMES)
def test_what_is_written_there_is_read(console: power.Console, label: str) -> None:
    """All free memory was; some of it had been the kernel's code and data for its start."""
    freed = re.findall(r"^freed (\d+)$", console.of(label).text, re.MULTILINE)
    assert len(freed) == 1 and int(freed[0]) > 0


def test_the_sites_there_were_undone(console: power.Console) -> None:
    """Nothing else that the guest does here changes code, and no fragment had to make room."""
    counters = console.statistics("inplace")
    assert counters["bt_undone"] > 0 and counters["bt_evicted"] == 0
    assert counters["bt_sites"] == counters["bt_patched"] - counters["bt_undone"]
