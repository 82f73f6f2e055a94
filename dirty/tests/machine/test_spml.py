# SPDX-License-Identifier: Apache-2.0 OR MIT
"""SPML for real: the guest module in a guest of trapless-vmm, on the stock kvm_amd of an emulated host.

The witness is memory itself (the lab's forwarded.c, dirty-oracle): a copy that is kept up to date by the
reports must equal it. What the VMM counts shows only that the reports came from the log.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import module_steps
import oracle_steps
from trapless_lab import artifacts, host
from trapless_lab.machines import initramfs, nested, runner
from trapless_lab.machines.nested import Inner
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript, complaints

pytestmark = pytest.mark.machine

PROGRAM = "dirtyforwarded"
CASES = {"rounds", "alias", "kernel-first", "huge", "halves", "changes", "hidden", "threads", "others"}
SMOKE = ("rounds", "alias", "kernel-first", "halves", "hidden")
SMALL_RING = "spml_entries=512 spml_schedule=1"
# Minutes under nested emulation, and no other than in a guest of its own.
SLOW = ("alternate-pages", "sparse", "racing-writers", "racing-watch", "many-ranges", "swap")


def _insmod(options: str = "") -> str:
    return f"insmod {module_steps.GUEST}/{module_steps.NAME}.ko {options}\n"


def _cases(*names: str) -> str:
    return f"{PROGRAM} {' '.join(names)}; [ $? -le 1 ] || exit 1\n"


def _inner(name: str, script: str, cpus: int = 1, mistake: str = "") -> Inner:
    environment = f"DIRTY_MUTANT={mistake}" if mistake else ""
    return Inner(name, script, module_steps.module_files(), cpus=cpus, environment=environment)


def _run(
    *inner: Inner, before: Sequence[Step] = (), timeout_s: float = 240, vmm: Path | None = None
) -> Transcript:
    return runner.run(
        nested.machine(),
        [*before, *(one.step(timeout_s) for one in inner)],
        files={**nested.files(*inner, vmm=vmm), **module_steps.module_files()},
        modules=nested.OUTER_MODULES,
    )


def _count(transcript: Transcript, step: str, name: str) -> int:
    """Return what the VMM says at its end."""
    found = re.search(rf"^trapless-vmm: Counts .*\b{name}: (\d+)", transcript[step].output, re.MULTILINE)
    assert found, transcript[step].output
    return int(found[1])


def _complaints(transcript: Transcript, step: str) -> list[str]:
    """Return what the inner kernel complains of, but for microcode that the emulated processor has not."""
    found = complaints(transcript[step].output)
    return [line for line in found if "Speculative Return Stack Overflow" not in line]


def test_nothing_is_missed() -> None:
    script = _insmod() + _cases(*SMOKE) + f"rmmod {module_steps.NAME}\n"
    script += _insmod(SMALL_RING) + _cases("overrun")
    outside = [module_steps.insmod(), Step("outside", f"{PROGRAM} rounds", expect=1), module_steps.rmmod()]
    transcript = _run(_inner("smoke", script), before=outside)
    # Nobody offers the outer guest a log.
    assert "ATTACH: Operation not supported" in transcript["outside"].output
    nested.output(transcript["smoke"].output)
    assert module_steps.failed(transcript, "smoke") == []
    assert set(module_steps.passed(transcript, "smoke")) == {*SMOKE, "overrun"}
    # Beside what was written, only what a hypervisor may log when it is first read.
    found = re.search(r"^written=(\d+) reported=(\d+)$", transcript["smoke"].output, re.MULTILINE)
    assert found and int(found[1]) <= int(found[2]) <= 2 * int(found[1])
    assert _count(transcript, "smoke", "forwarded") >= int(found[1])
    assert _count(transcript, "smoke", "overruns") > 0
    assert _count(transcript, "smoke", "schedules") > 0
    assert _complaints(transcript, "smoke") == []


@pytest.mark.long("every case, nested; make check has the smoke test of all that differs")
@pytest.mark.timeout(1800)
def test_every_case_on_one_and_two_processors() -> None:
    inner = [_inner(f"cpus{cpus}", _insmod() + _cases(*sorted(CASES)), cpus) for cpus in (1, 2)]
    transcript = _run(*inner, timeout_s=600)
    for one in inner:
        nested.output(transcript[one.name].output)
        assert module_steps.failed(transcript, one.name) == []
        assert set(module_steps.passed(transcript, one.name)) == CASES
        assert _complaints(transcript, one.name) == []


@pytest.mark.long("three nested boots for controls")
@pytest.mark.timeout(1800)
def test_mistakes_of_the_vmm_are_caught_or_reported() -> None:
    script = _insmod() + _cases("rounds", "alias")
    lose = _inner("lose", script, mistake="vmm-lose")
    wild = _inner("wild", script + _cases("overrun"), mistake="vmm-wild")
    said = _inner("said", script + _cases("overrun"), mistake="vmm-overrun")
    mutant = artifacts.mutant("dirty", "rust", "release/trapless-vmm")
    transcript = _run(lose, wild, said, timeout_s=600, vmm=mutant)
    # The lying ring reports no overrun; only the comparison of memory shows the loss.
    assert module_steps.failed(transcript, "lose") == ["rounds", "alias"]
    assert "pages missed" in transcript["lose"].output
    for name in ("wild", "said"):
        assert module_steps.failed(transcript, name) == []
        assert set(module_steps.passed(transcript, name)) == {"rounds", "alias", "overrun"}
        assert _complaints(transcript, name) == []


def _oracle(arguments: str) -> dict[str, Any]:
    """Hold libdirty's back end against memory, on two processors, in a guest that can swap."""
    zram = initramfs.modules(host.module_files(host.kernel(), "zram"))
    script = f"""set -e
for module in $(cat /modules/order); do
	insmod "/modules/$module"
done
{oracle_steps.SWAP.command}
{_insmod()}dirty-oracle --json --backend spml {arguments} || [ $? -eq 1 ]
"""
    inner = _inner("oracle", script, cpus=2)
    inner = replace(inner, memory="768MiB", files={**inner.files, **zram, **oracle_steps.files()})
    transcript = _run(inner, timeout_s=2100)
    nested.output(transcript["oracle"].output)
    found = oracle_steps.report(transcript, "oracle")
    assert {row["backend"] for row in found["rows"]} == {"spml"}
    assert oracle_steps.bad(found) == []
    assert _complaints(transcript, "oracle") == []
    return found


@pytest.mark.long("the oracle in a nested guest: tens of minutes")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("target", ["own", "other"])
def test_the_oracle_finds_nothing(target: str) -> None:
    found = _oracle(f"--target {target} {oracle_steps.without(SLOW)}")
    assert len(oracle_steps.judged(found)) > 20


@pytest.mark.long("the oracle in a nested guest: tens of minutes")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("scenario", SLOW)
def test_the_oracle_finds_nothing_in_what_is_slow(scenario: str) -> None:
    """In another process, where all of it is in the tracker's hands."""
    found = _oracle(f"--target other {oracle_steps.only([scenario])}")
    assert oracle_steps.judged(found) == {(scenario, "other")}, found["rows"]
