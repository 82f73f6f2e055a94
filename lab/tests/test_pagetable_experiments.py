# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The experiments on page tables, on recorded runs and on failing ones."""

import re
from collections.abc import Callable

import pytest

import replay
from trapless_lab import artifacts
from trapless_lab.errors import LabError
from trapless_lab.experiment import workload
from trapless_lab.experiment.experiment import Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.pagetable import columns, crossings, prices
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import fork_dirty, process_latency, pv_operations
from trapless_lab.pagetable.experiments import switches as pagetable_switches

STRICT, RELAXED = MACHINES["xen-strict"], MACHINES["xen-relaxed"]


@pytest.fixture(autouse=True)
def _unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use empty files instead of products that are not built: nothing is booted."""
    monkeypatch.setattr(artifacts, "_built", lambda path, _how: path)


def _times(factor: float, step: str, record: str) -> replay.Forge:
    """Multiply the nanoseconds of a record in the steps whose names begin so."""

    def forge(name: str, output: str) -> str:
        if not name.startswith(step):
            return output
        return re.sub(
            rf"(?m)^({record} .*?=)(\d+)(?= n=)", lambda m: f"{m[1]}{int(int(m[2]) * factor)}", output
        )

    return forge


def _checks(result: Result) -> dict[str, bool]:
    return {check.name: check.holds for check in result.checks}


def result(text: str) -> StepResult:
    return StepResult(Step("x", ""), text.encode(), 0, 0.0)


# Columns


def test_slower_than_the_slack_is_named() -> None:
    assert columns.no_slower("x", {"a": (1000, 1009), "b": (1000, 500)}).holds
    check = columns.no_slower("x", {"a": (1000, 1011), "b": (1000, 500), "c": (10, 12)})
    assert not check.holds
    assert check.text == "slower than stock: a by 1.1 %, c by 20.0 %"


def test_tax_left() -> None:
    assert columns.tax_left_percent(100, 500, 500) == 100
    assert columns.tax_left_percent(100, 500, 100) == 0
    assert columns.tax_left_percent(100, 500, 233) == 33.2


def test_everything_is_loaded_after_stock_was_measured() -> None:
    context = replay.quick("process-latency")
    process_latency.process_latency(context)
    vendors = [m.name for m, _ in context.booted if m.cpu != "qemu64"]
    assert vendors == ["bare", "xen-strict"], "one of two: it is a quick run"
    booted = {machine.name: names for machine, names in context.booted if machine.cpu == "qemu64"}
    assert list(booted) == ["bare", "xen-strict", "xen-relaxed"]
    loads = [step.name for step in pagetable.load_steps(pagetable.everything(STRICT))]
    names = booted["xen-strict"]
    first = names.index(loads[0])
    assert names[first : first + len(loads)] == loads
    assert all(name.startswith("stock: ") for name in names[:first])
    assert all(name.startswith("boosted: ") for name in names[first + len(loads) :])


def test_parts_of_a_machine() -> None:
    def names(machine: str) -> list[str]:
        return [part.name for part in pagetable.everything(MACHINES[machine])]

    assert names("xen-strict") == ["payload", "pool", "pvmmu"]
    assert names("xen-relaxed") == ["payload", "pool", "pvmmu"]
    loads = [step.command for step in pagetable.load_steps(pagetable.everything(MACHINES["xen-relaxed"]))]
    assert ["unmarked=1" in command for command in loads] == [False, True, False]
    for machine in ("bare", "xen-pvh"):
        with pytest.raises(ValueError, match="no PV page tables"):
            names(machine)


def test_parts_are_unloaded_in_reverse() -> None:
    unload = [step.name for step in pagetable.unload_steps(pagetable.everything(STRICT))]
    assert unload == ["unload pvmmu module", "unload pagetable module", "unload pagetable payload"]
    assert pagetable.unload_steps() == pagetable.unload_steps(pagetable.PIBOOSTER)
    assert [step.name for step in pagetable.unload_steps()] == unload[1:]


# The guest's records


def test_loops_of_one_step_are_averaged() -> None:
    assert workload.ns_per_process(result("fork_sh ns=10 n=5\nfork_sh ns=20 n=5\n"), "fork_sh") == 15


def test_fork_dirty_record() -> None:
    line = "fork_dirty pages=64 fork=1 exit=2 redirty=3 copied=4 n=10\n"
    assert workload.fork_dirty_ns(result(line), 64) == {"fork": 1, "exit": 2, "redirty": 3, "copied": 4}
    with pytest.raises(LabError, match="no fork_dirty of 6"):
        workload.fork_dirty_ns(result(line), 6)


def test_operations_are_means_and_not_rounded() -> None:
    assert workload.operations_ns(result("a ns=10 n=4\nb ns=3 n=1\n")) == {"a": 2.5, "b": 3}
    with pytest.raises(LabError, match="no operation"):
        workload.operations_ns(result("pvops: killed\n"))


# process-latency


def test_process_latency() -> None:
    found = process_latency.process_latency(replay.quick("process-latency", plots=(album := Album())))
    assert found.holds
    assert set(album.drawn) == {"process-latency.png", "process-latency-crossings.png"}
    assert {"bare", "stock", "boosted", "relaxed_boosted", "epyc_bare", "epyc_boosted"} <= set(found.keys)
    rows = {row["measure"]: row for row in found.rows}
    for row in [rows[m] for measure in workload.MODES for m in (measure, f"{measure}, epyc")]:
        assert row["bare"] < row["boosted"] < row["stock"]
        left = 100 * (row["boosted"] - row["bare"]) / (row["stock"] - row["bare"])
        assert row["tax_left_percent"] == pytest.approx(left, abs=0.1)
    assert len(found.targets) == 3 * (2 + 3) + 3 * 2
    assert "RDTSC" in found.method


def test_process_latency_counts_crossings_and_flushes() -> None:
    found = process_latency.process_latency(replay.quick("process-latency"))
    entries, flushes = found.keys["xen_entries"], found.keys["tlb_flushes"]
    for column in ("stock", "boosted", "epyc_stock", "epyc_boosted"):
        counted = found.keys["counted"][column]["fork_exit"]
        kinds = sum(counted[kind] for kind in crossings.KINDS)
        assert entries[column]["fork_exit"] == pytest.approx(kinds, abs=0.05)
        assert flushes[column]["fork_exit"] == counted["flushes"] > 0
    assert entries["bare"] == dict.fromkeys(workload.MODES, 0)
    assert entries["boosted"]["fork_exit"] < 0.7 * entries["stock"]["fork_exit"]
    modelled = [row for row in found.rows if "model" in row["measure"]]
    assert len(modelled) == 3 * 2 * len(prices.PROCESSORS)
    assert all(row["bare"] < row["boosted"] < row["stock"] for row in modelled)


@pytest.mark.parametrize("column", ["boosted", "relaxed_boosted"])
def test_a_slower_process_fails(column: str) -> None:
    context = replay.quick("process-latency", _times(3, f"{column}: fork_sh", "fork_sh"))
    checks = _checks(process_latency.process_latency(context))
    assert {name for name, holds in checks.items() if not holds} == {f"{column} is not slower"}


def test_targets_are_reached_and_missed_and_neither_fails() -> None:
    def targets(factor: float) -> set[bool]:
        context = replay.quick("process-latency", _times(factor, "boosted: ", r"\w+"))
        found = process_latency.process_latency(context)
        assert found.holds
        names = [
            f"{measure} {what}" for measure in workload.MODES for what in ("boosted", "tax_left_percent")
        ]
        return {t.reached for t in found.targets if t.name in names}

    assert targets(0.6) == {True}
    assert targets(1.3) == {False}


# fork-dirty


def test_fork_dirty() -> None:
    found = fork_dirty.fork_dirty(replay.quick("fork-dirty", plots=(album := Album())))
    assert found.holds
    assert set(album.drawn) == {"fork-dirty-fork.png", "fork-dirty-redirty.png"}
    assert {"bare", "stock", "boosted", "slope", "xen_entries", "tlb_flushes"} <= set(found.keys)
    counted = found.keys["counted"]["stock"]
    assert counted["fork, 1,024 pages"]["emulated"] > 1000 > counted["fork, 0 pages"]["emulated"]
    assert found.keys["stock"]["1024"]["fork"] > 10 * found.keys["bare"]["1024"]["fork"]
    assert found.keys["slope"]["stock"]["fork"] == pytest.approx(3070, rel=0.05)
    assert len(found.rows) == 4 * 3 + 4 * 2 + 4 * len(prices.PROCESSORS)


def test_a_slower_fork_of_one_size_fails() -> None:
    def forge(name: str, output: str) -> str:
        return output.replace("fork=", "fork=9") if name == "boosted: 64 pages" else output

    found = fork_dirty.fork_dirty(replay.quick("fork-dirty", forge))
    assert _checks(found) == {"boosted is not slower": False}
    assert "fork with 64 pages" in found.checks[0].text


def test_slope_is_per_page() -> None:
    costs = {pages: {"fork": 1000 + 7 * pages} for pages in fork_dirty.PAGES}
    assert fork_dirty.slope(costs, "fork") == pytest.approx(7)


# pv-operations


def test_pv_operations() -> None:
    found = pv_operations.pv_operations(replay.quick("pv-operations"))
    assert found.holds
    operations = [row["operation"] for row in found.rows if ":" not in row["operation"]]
    assert {"null_syscall", "pipe_round_trip", "mmap_touch_4m", "mprotect_4k"} <= set(operations)
    assert set(found.keys["stock"]) == set(found.keys["bare"]) == set(operations)


def test_a_slower_operation_fails() -> None:
    context = replay.quick("pv-operations", _times(1.04, "boosted: ", "null_syscall"))
    found = pv_operations.pv_operations(context)
    assert not found.holds
    assert found.checks[0].text == "slower than stock: null_syscall by 4.0 %"


def test_runs_must_have_the_same_operations() -> None:
    def forge(name: str, output: str) -> str:
        return output.replace("null_syscall", "other") if name == "stock: operations 1" else output

    with pytest.raises(LabError, match="differ from run to run"):
        pv_operations.pv_operations(replay.quick("pv-operations", forge))


# pagetable-switches


def test_switches() -> None:
    found = pagetable_switches.pagetable_switches(replay.quick("pagetable-switches"))
    assert found.holds
    assert {"pool", "walk", "thunks"} <= set(found.keys["saved"])
    none, everything = found.keys["none"], found.keys["all"]
    rows = {row["on"]: row for row in found.rows}
    assert rows["all"]["fork_sh"] == none["fork_sh"] - everything["fork_sh"]
    alone = [rows[name]["fork_sh"] for name in found.keys["saved"]]
    assert rows["sum of each alone"]["fork_sh"] == sum(alone)


def _in_part(part: str, change: Callable[[str], str]) -> replay.Forge:
    def forge(_name: str, output: str) -> str:
        return re.sub(rf"(?ms)^switches {part}$.*?(?=^switches |\Z)", lambda m: change(m[0]), output)

    return forge


def test_switches_that_save_nothing_fail() -> None:
    dearer = _in_part("all", lambda text: re.sub(r"ns=(\d+)", r"ns=9\1", text))
    found = pagetable_switches.pagetable_switches(replay.quick("pagetable-switches", dearer))
    assert _checks(found) == {"there are switches": True, "all together save": False}


def test_a_build_without_switches_fails() -> None:
    gone = _in_part("/[^\n]*", lambda _text: "")
    found = pagetable_switches.pagetable_switches(replay.quick("pagetable-switches", gone))
    assert not _checks(found)["there are switches"]


def test_a_switch_measured_twice_is_an_error() -> None:
    twice = _in_part("all", lambda text: text + text)
    with pytest.raises(LabError, match="twice"):
        pagetable_switches.pagetable_switches(replay.quick("pagetable-switches", twice))
