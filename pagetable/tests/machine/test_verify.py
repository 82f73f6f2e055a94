# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`trapless pagetable verify` in a strict dom0: the product is verified, a payload that is wrong is not.

Invariant: what is loaded afterwards, and what became of the spare device, is read from Xen's own list and
from /sys, not from the command. Whether the IOMMU refused the device is read from QEMU's trace.

What this cannot see: a payload that is wrong in a way that the differential test itself does not reach; the
mutants of test_tables_differential.py are its measure. Nor a controller that hangs when its write is refused:
QEMU's answers with an error.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tables
from machines import GUEST, installed, payload_file
from trapless_lab import host
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import Tree
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.installed import modules

pytestmark = pytest.mark.machine

BROKEN = ("skip-unchecked", "range-type-kept")
# Wrong about devices alone: its answers about page tables are right.
LETS_DEVICES_IN = "no-flush"
DEVICE_TEST = "trapless_device_test"
SPARE = "0000:00:1e.0"
SYSFS = f"/sys/bus/pci/devices/{SPARE}"
BUDGET_S = 8
LEAST_CALLS = 1500


def _step(name: str, command: str) -> Step:
    return Step(name, command, timeout_s=600, expect=None)


def _verify(name: str, arguments: str) -> list[Step]:
    return [_step(name, f"trapless pagetable verify {arguments}"), _after(name)]


def _after(name: str) -> Step:
    # The spare device: nothing but what a kernel says that never used it.
    device = f"cat {SYSFS}/driver_override {SYSFS}/enable; test ! -e {SYSFS}/driver && echo no driver"
    loaded = f"xen-livepatch list; ls /sys/module | grep trapless_; {device}; true"
    return _step(f"after {name}", loaded)


def _signalled(name: str, signal: str, arguments: str) -> list[Step]:
    """Verify, and send a signal as soon as Xen has the payload: in the middle of the calls about page tables.

    Verify is in the foreground: a shell has what it starts in the background ignore SIGINT.
    """
    applied = "until xen-livepatch list | grep -q APPLIED; do sleep 0.1; done"
    killer = f"({applied}; kill -{signal} $(pidof trapless)) & "
    verify = f"trapless pagetable verify {arguments}"
    return [_step(name, f"{killer}{verify}; rc=$?; wait; (exit $rc)"), _after(name)]


def _installed() -> Tree:
    return {**installed(), **modules({tables.MODULE: "table_test", DEVICE_TEST: "device_test"})}


def _qemu_with_spare_controller(directory: Path) -> Path:
    """Return a QEMU whose machines have one more device, an NVMe controller; they have no driver for it."""
    place = f"nvme,serial=spare,addr={SPARE[-4:]}"
    wrapper = directory / "qemu"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(str(host.qemu()))} "$@" -device {place}\n')
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    files = _installed()
    for mistake in (*BROKEN, LETS_DEVICES_IN):
        files = {**files, **payload_file(mistake)}
    # A mistake may take the machine with it before the module has compared: not those on this seed.
    short = f"--budget {BUDGET_S} --seed 1"
    qemu = _qemu_with_spare_controller(tmp_path_factory.mktemp("qemu"))
    steps = [
        *_verify("good", f"{short} --device {SPARE} --json"),
        *_verify(LETS_DEVICES_IN, f"{short} --device {SPARE} --payload {GUEST}/{LETS_DEVICES_IN}.livepatch"),
        *(
            step
            for mistake in BROKEN
            for step in _verify(mistake, f"{short} --payload {GUEST}/{mistake}.livepatch")
        ),
        *_signalled("interrupted", "INT", short),
        *_signalled("killed", "KILL", short),
        _step("status of what is left", "trapless pagetable status"),
        _step("load over what is left", "trapless pagetable load"),
        _step("unload what is left", "trapless pagetable unload"),
        _after("unloading what was left"),
        # The board's own disk controller.
        _step("another kind", "trapless pagetable verify --device 00:1f.2"),
        _step("load", "trapless pagetable load"),
        _step("loaded", "trapless pagetable verify"),
        _step("unload", "trapless pagetable unload"),
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host, "qemu", lambda _architecture: qemu)
        return runner.run(MACHINES["xen-strict"].with_icount(), steps, files=files)


@pytest.fixture(scope="module")
def report(transcript: Transcript) -> dict[str, Any]:
    output = transcript["good"].output
    answer: dict[str, Any] = json.loads(output[output.index("{") :])
    return answer


def test_the_product_is_verified(transcript: Transcript, report: dict[str, Any]) -> None:
    assert report["failures"] == [] and report["verified"] and transcript["good"].rc == 0
    compared = report["tables"]
    assert compared["calls"] >= LEAST_CALLS and compared["compared"] == compared["calls"]
    assert compared["compared_interrupted"] >= LEAST_CALLS
    assert compared["ranges"] > 0
    assert report["pool"]["serves"] and report["pool"]["most_semi_writable"] > 50
    assert report["pool"]["iommu_calls_saved"] > 100 and report["pool"]["kept"] == 0


def test_processes_are_compared_in_turns(report: dict[str, Any]) -> None:
    assert [of["what"] for of in report["processes"]] == ["fork+exit", "fork+exec"] and report["turns"] >= 3
    assert all(of["ratio"]["median"] < 1 for of in report["processes"]), report["processes"]


@pytest.mark.parametrize("mistake", BROKEN)
def test_negative_control_a_broken_payload_is_not_verified(transcript: Transcript, mistake: str) -> None:
    result = transcript[mistake]
    assert result.rc == 1 and "NOT verified" in result.output and "DIFFERENT expected: " in result.output
    assert "processes  not reached" in result.output, "no process met it"


def test_a_device_is_kept_from_a_semi_writable_page(transcript: Transcript, report: dict[str, Any]) -> None:
    assert report["device"] == {
        "device": SPARE,
        "rounds": 4,
        "ordinary": "written",
        "semi_writable": "blocked",
        "released": "written",
    }
    assert transcript.counts("good").faults > 0, "the IOMMU refused nothing"


def test_negative_control_a_payload_that_lets_devices_in_is_not_verified(transcript: Transcript) -> None:
    result = transcript[LETS_DEVICES_IN]
    assert result.rc == 1 and f"device {SPARE} wrote a semi-writable page" in result.output
    assert "DIFFERENT" not in result.output and "processes  not reached" in result.output
    assert transcript.counts(LETS_DEVICES_IN).faults == 0


def test_a_device_of_another_kind_is_refused(transcript: Transcript) -> None:
    result = transcript["another kind"]
    assert result.rc == 1 and "nothing was changed" in result.output and "class 0x010601" in result.output


def test_what_is_interrupted_is_not_finished(transcript: Transcript) -> None:
    result = transcript["interrupted"]
    assert result.rc == 1 and "Not finished, so nothing is known" in result.output
    assert "a signal requested the end" in result.output and "nothing is loaded now." in result.output
    assert "processes  not reached" in result.output, "it was in the middle of the calls"


def test_what_a_killed_verify_leaves_is_unloaded(transcript: Transcript) -> None:
    left = transcript["after killed"].output
    assert "APPLIED" in left and tables.MODULE in left, "nothing was left"
    assert f"left {tables.MODULE}" in transcript["status of what is left"].output
    refused = transcript["load over what is left"]
    assert refused.rc == 1 and "all its switches off" in refused.output
    unloaded = transcript["unload what is left"]
    assert unloaded.rc == 0 and f"{tables.MODULE} taken out" in unloaded.output


@pytest.mark.parametrize("step", ["good", LETS_DEVICES_IN, *BROKEN, "interrupted", "unloading what was left"])
def test_nothing_stays(transcript: Transcript, step: str) -> None:
    output = transcript[f"after {step}"].output
    assert "Nothing to list" in output and "trapless_" not in output
    assert "(null)\n0\nno driver" in output


def test_a_host_that_is_not_stock_is_refused_and_stays_as_it_is(transcript: Transcript) -> None:
    result = transcript["loaded"]
    assert result.rc == 1 and "payload, pool, pvmmu is loaded" in result.output
    assert transcript["unload"].output.count("taken out") == 3


def test_the_kernel_had_nothing_to_complain_about(transcript: Transcript) -> None:
    assert not transcript.kernel_warnings()


@pytest.mark.long("another boot, for memory above 4 GiB alone")
def test_a_host_with_more_memory_is_verified() -> None:
    machine = replace(MACHINES["xen-strict"], memory_mib=8192)
    transcript = runner.run(machine, _verify("good", f"--budget {BUDGET_S}"), files=_installed())
    assert transcript["good"].rc == 0 and "0 pages kept" in transcript["good"].output
