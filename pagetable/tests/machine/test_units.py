# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The systemd units, booted: what is loaded when a host's first service starts, and what a refusal does."""

from pathlib import Path

import pytest

from machines import installed
from trapless_lab.machines import booted, runner
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable

pytestmark = pytest.mark.machine

UNITS = Path(__file__).resolve().parents[3] / "packaging" / "systemd"
LOAD = "trapless-pagetable.service"
METRICS = "trapless-metrics.service"
TIMER = "trapless-metrics.timer"
PROM = "/var/lib/prometheus/node-exporter"
PAYLOAD = f"/usr/lib/trapless/this-build/{pagetable.NAME}.livepatch"

_STATE = ("ActiveState", "SubState", "Result", "ConditionResult", "ExecMainStatus")
# The witnesses: Xen's own list, the kernel's own modules.
_LOADED = "xen-livepatch list 2>/dev/null; ls /sys/module | grep ^trapless; true"


def _steps() -> list[Step]:
    return [
        Step("loaded at boot", _LOADED),
        Step("state", f"systemctl show -p {','.join(_STATE)} {LOAD}"),
        Step(
            "system",
            "systemctl is-system-running --wait; systemctl --failed --no-legend --plain | "
            'while read -r unit rest; do echo "$unit $rest"; systemctl show -p ExecMainStatus $unit; done',
        ),
        Step(
            "order",
            f"for unit in {LOAD} sysinit.target lab-steps.service; do "
            "systemctl show --value -p ActiveEnterTimestampMonotonic $unit; done",
        ),
    ]


def _boot(machine: Machine, steps: list[Step], files: Tree) -> Transcript:
    # The unit itself loads the kernel module for Xen's hypercalls.
    units = booted.tree(sorted(UNITS.iterdir()), (LOAD, TIMER), modules=("xen-privcmd",))
    keep: Tree = {f"{PROM}/.keep": File(b""), "/modules/order": File(b"")}
    return runner.run(machine, [*_steps(), *steps], files={**installed(), **units, **keep, **files})


def _state(transcript: Transcript) -> dict[str, str]:
    lines = transcript["state"].output.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture(scope="module")
def strict() -> Transcript:
    """A strict dom0 on which everything is installed."""
    return _boot(
        MACHINES["xen-strict"],
        [
            Step("metrics", f"systemctl start {METRICS} && cat {PROM}/trapless.prom"),
            Step("timer", f"systemctl is-active {TIMER}"),
            Step("stop", f"systemctl stop {LOAD} && {_LOADED}"),
            Step("start", f"systemctl start {LOAD} && {_LOADED}"),
        ],
        {},
    )


@pytest.fixture(scope="module")
def refused() -> Transcript:
    """The same with a file that is not a payload."""
    return _boot(MACHINES["xen-strict"], [], {PAYLOAD: File(b"not an ELF file")})


@pytest.fixture(scope="module")
def bare() -> Transcript:
    """The package on a machine without Xen."""
    return _boot(MACHINES["bare"], [], {})


def _all_loaded(output: str) -> bool:
    return {pagetable.NAME, pagetable.PVMMU} <= set(output.splitlines()) and "APPLIED" in output


def _in_time(transcript: Transcript) -> bool:
    loaded, initialised, steps = (int(line) for line in transcript["order"].output.split())
    return 0 < loaded <= initialised < steps


def test_everything_is_loaded_when_the_first_service_starts(strict: Transcript) -> None:
    assert _all_loaded(strict["loaded at boot"].output)
    state = _state(strict)
    assert (state["ActiveState"], state["Result"]) == ("active", "success")
    assert strict["system"].output.split() == ["running"]


def test_it_is_loaded_before_the_system_is_initialised(strict: Transcript) -> None:
    assert _in_time(strict)


def test_stopping_the_unit_unloads_and_starting_loads_again(strict: Transcript) -> None:
    assert "trapless" not in strict["stop"].output
    assert _all_loaded(strict["start"].output)


def test_metrics_are_written_under_the_units_own_restrictions(strict: Transcript) -> None:
    assert "trapless_pagetable" in strict["metrics"].output
    assert strict["timer"].output.strip() == "active"


def test_a_refusal_fails_the_unit_and_not_the_boot(refused: Transcript) -> None:
    assert "trapless" not in refused["loaded at boot"].output
    state = _state(refused)
    assert (state["ActiveState"], state["Result"]) == ("failed", "exit-code")
    assert refused["system"].output.split()[:2] == ["degraded", LOAD]
    assert not _in_time(refused)


def test_without_xen_the_unit_is_skipped(bare: Transcript) -> None:
    state = _state(bare)
    assert (state["ActiveState"], state["ConditionResult"]) == ("inactive", "no")
    assert bare["system"].output.split() == ["running"]


def test_no_kernel_complains(strict: Transcript, refused: Transcript, bare: Transcript) -> None:
    assert strict.kernel_warnings() + refused.kernel_warnings() + bare.kernel_warnings() == []
