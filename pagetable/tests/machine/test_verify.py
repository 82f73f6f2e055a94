# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`trapless pagetable verify` in a strict dom0: the product is verified, a payload that is wrong is not.

Invariant: what is loaded afterwards is read from Xen's own list and from /sys/module, not from the command.

What this cannot see: a payload that is wrong in a way that the differential test itself does not reach; the
mutants of test_tables_differential.py are its measure.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

import tables
from machines import GUEST, installed, payload_file
from trapless_lab import artifacts, host
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

BROKEN = ("skip-unchecked", "l1-unchecked")
BUDGET_S = 8
LEAST_CALLS = 1500


def _step(name: str, command: str) -> Step:
    return Step(name, command, timeout_s=600, expect=None)


def _verify(name: str, arguments: str) -> list[Step]:
    loaded = "xen-livepatch list; ls /sys/module | grep trapless_; true"
    return [_step(name, f"trapless pagetable verify {arguments}"), _step(f"after {name}", loaded)]


def _installed() -> Tree:
    module = File(artifacts.module("pagetable", "table_test", tables.MODULE))
    return {**installed(), f"/lib/modules/{host.kernel().release}/updates/dkms/{tables.MODULE}.ko": module}


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    files = _installed()
    for mistake in BROKEN:
        files = {**files, **payload_file(mistake)}
    # A mistake may take the machine with it before the module has compared: not those on this seed.
    short = f"--budget {BUDGET_S} --seed 1"
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            *_verify("good", f"{short} --json"),
            *(
                step
                for mistake in BROKEN
                for step in _verify(mistake, f"{short} --payload {GUEST}/{mistake}.livepatch")
            ),
            _step("load", "trapless pagetable load"),
            _step("loaded", "trapless pagetable verify"),
            _step("unload", "trapless pagetable unload"),
        ],
        files=files,
    )


@pytest.fixture(scope="module")
def report(transcript: Transcript) -> dict[str, Any]:
    output = transcript["good"].output
    answer: dict[str, Any] = json.loads(output[output.index("{") :])
    return answer


def test_the_product_is_verified(transcript: Transcript, report: dict[str, Any]) -> None:
    assert transcript["good"].rc == 0 and report["verified"] and report["failures"] == []
    compared = report["tables"]
    assert compared["calls"] >= LEAST_CALLS and compared["compared"] == compared["calls"]
    assert compared["compared_interrupted"] >= LEAST_CALLS
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


@pytest.mark.parametrize("step", ["good", *BROKEN])
def test_nothing_stays(transcript: Transcript, step: str) -> None:
    output = transcript[f"after {step}"].output
    assert "Nothing to list" in output and "trapless_" not in output


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
