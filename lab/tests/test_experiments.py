# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every experiment, quickly, as a user runs it: its own checks hold and its JSON has the contract's keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trapless_lab import catalogue, cli
from trapless_lab.dirty.experiments import criu_native
from trapless_lab.errors import LabError
from trapless_lab.pagetable.experiments import linux_series
from trapless_lab.pagetable.experiments import size as pagetable_size
from trapless_lab.power.experiments import benchmarks as power_benchmarks
from trapless_lab.power.experiments import emulation as power_emulation
from trapless_lab.power.experiments import replay as power_replay
from trapless_lab.power.experiments import tracing as power_tracing

pytestmark = pytest.mark.machine

EMULATED = (*power_emulation.STARTS, *power_emulation.WORKLOADS)
FLUSHES = {"flushes_per_process"}
PROCESSES = {"fork_exit", "fork_exec", "fork_sh"}
SWITCHED = {*PROCESSES, "fork_1024", "redirty_1024"}
KERNELS = {"hsearch", "queens"}  # of a quick run
MOVED = {"network, Mbps", "network beside processes, Mbps"}
MOVED |= {f"{what}, instructions a MiB" for what in ("network", "disk read", "disk write")}
TABLES = {"pte", "pmd", "pud", "pgd", "user_pgd"}
LEVELS = {*TABLES, "L1", "L2", "L3", "all three"}
TYPES = {"l1", "l2", "l3", "l4", "seg_desc"}
EXITS = {"boot", "getppid", "fork", "exec", "emulated", "exits"}
PAGES = {"0", "64", "256", "1024", "4096"}
WITH_COUNTS: dict[str, set[str]] = {
    key: set() for key in ("xen_entries", "tlb_flushes", "counted", "iotlb_flushes")
}
# Of a quick run: top-level key -> the keys in it; none where it is a plain value.
KEYS: dict[str, dict[str, set[str]]] = {
    "dirty-boehm": {
        **{"spml": set(), "tracker_of_proc": {"dbit", "epml"}, "spml_tracker_of_proc": set()},
        **{"userfaultfd": set(), "userfaultfd_tracker_of_proc": set(), "formulas": set()},
    },
    "dirty-criu": {"spml": set(), "formulas": set(), "tracker_of_proc": {"uffd-sync", "dbit", "epml"}},
    "dirty-criu-native": {"redis_mib": set(), "soft_dirty": set()},
    "dirty-guest": {"formulas": set(), "times_cheaper_than_proc": set()},
    "dirty-guest-spml": {
        **{"formulas": set(), "call": {"instructions", "turn_insns", "turn_with_calls_insns"}},
        "reverse_mapping": {"pages", "instructions_a_page", "instructions_a_gib", "ms_a_gib_at_2_ns"},
    },
    "dirty-native": {"rejected": set(), "sweep": set(), "bench": set()},
    "domu-latency": {
        **{"bare": PROCESSES, "stock": PROCESSES, "payload": PROCESSES, "boosted": PROCESSES},
        **WITH_COUNTS,
    },
    "pagetable-bare": {"stock": PROCESSES, "cached": PROCESSES},
    "pagetable-browser": {
        **{"stock": set(), "pre": set(), "events": set(), "curves": {"stock", "pre"}},
    },
    "pagetable-compute": {"stock": KERNELS, "piboost": KERNELS, "boosted": KERNELS},
    "pagetable-io": {"stock": MOVED, "piboost": MOVED, "boosted": MOVED},
    "pagetable-iotlb-model": {"stock": PROCESSES, "boosted": PROCESSES, "model": PROCESSES},
    "pagetable-latency": {
        **{"stock": LEVELS, "boosted": LEVELS, "dyn": {*LEVELS, "enabling_ms", "enabled_ms"}},
        **{"miss": set(), "steady": {"hits", "misses", "cached", "held"}, "curves": {"stock", "pre", "dyn"}},
    },
    "pagetable-shrinking": {"model": set(), "adaptive": set(), "best_fixed": set(), "day": set()},
    "pagetable-size": {
        group: {
            "group",
            "pages",
            "ready",
            *TABLES,
            "allocations",
            "misses",
            "misses_percent",
            "flushes",
            "seconds",
        }
        for group in pagetable_size.QUICK_GROUPS
    },
    "pagetable-desktop": {"stock": set(), "pre": set()},
    "pagetable-types": {
        **{setting: {*TYPES, "seconds", "flushes"} for setting in ("idle", "busy", "control")},
        **{"boot": TYPES, "conclusion": set()},
    },
    "pagetable-flushes": {"stock": FLUSHES, "boosted": FLUSHES, "processes": set()},
    "pagetable-dma": {"normal": set(), "semi_writable": set(), "released": set()},
    "pagetable-switches": {"stock": SWITCHED, "none": SWITCHED, "all": SWITCHED, "saved": set()},
    "process-latency": {
        **{"bare": PROCESSES, "stock": PROCESSES, "boosted": PROCESSES},
        **{"relaxed_stock": PROCESSES, "relaxed_boosted": PROCESSES},
        **{f"epyc_{name}": PROCESSES for name in ("bare", "stock", "boosted")},
        **WITH_COUNTS,
    },
    "linux-series": {name: set(linux_series.MEASURES) for name in ("stock", *linux_series.PATCHES)},
    "fork-big": {"a_gib": {"dom0", "domU"}},
    "fork-dirty": {
        **{"bare": PAGES, "stock": PAGES, "boosted": PAGES, "slope": {"bare", "stock", "boosted"}},
        **WITH_COUNTS,
    },
    "power-exits": {
        **dict.fromkeys(("bare", "base", "inplace", "pv", "pv_fast"), EXITS),
        **{"small_pages": {"bare", "base", "inplace", "pv", "pv_fast"}, "sources": set()},
        "two_vcpus": {"one", "two"},
    },
    "power-emulation": {way: set(EMULATED) for way in ("bare", "base", "inplace", "emulated")},
    "power-benchmarks": {
        "exits": {*power_benchmarks.WORKLOADS, power_benchmarks.NOTHING},
        "privileged_percent": set(power_benchmarks.WORKLOADS),
    },
    "power-replay": {
        **{"overhead_percent": set(power_replay.WORKLOADS), "layouts": set(power_replay.WORKLOADS)},
        **{"empty": {"boot", "traced"}, "loading": set()},
    },
    "power-sources": {
        **{"instructions": {"base", "inplace"}, "pcs": {"base", "inplace"}, "top": {"base", "inplace"}},
        "translator": set(),
    },
    "power-tracing": {
        variant: set(power_tracing.WORKLOADS)
        for variant in (
            *("fixed_4_kb", "fixed_64_kb", "fixed_1024_kb", "fixed_4096_kb"),
            *("fixed_1024_kb_cached", "fixed_4096_kb_cached", "adaptive"),
        )
    },
    "power-two-vcpus": {mode: {"one", "two"} for mode in ("base", "inplace")},
    "pv-operations": {"bare": set(), "stock": set(), "boosted": set(), **WITH_COUNTS},
    "toolstack": {name: {"create", "destroy", "both", "nothing"} for name in ("stock", "boosted")},
}


def test_the_contract_knows_every_experiment() -> None:
    assert set(KEYS) == set(catalogue.experiments())
    assert set(KEYS) == JUDGES | set(WHY_LONG)


# Two short experiments run in make check, which also checks recordings of all. Why the others are left to
# make check-long:
JUDGES = {"pagetable-dma", "dirty-native"}
COUNTED = "machine tests of its system count the same, with witnesses of their own"
HARM = "looks for harm where none is expected"
LARGE = "a figure at many sizes, or of many programs"
WHY_LONG = {
    **dict.fromkeys(("pagetable-flushes", "process-latency", "dirty-guest", "power-exits"), COUNTED),
    **dict.fromkeys(("pagetable-switches", "pv-operations", "power-sources", "power-tracing"), COUNTED),
    **dict.fromkeys(("pagetable-bare", "pagetable-compute", "pagetable-io", "pagetable-shrinking"), HARM),
    **dict.fromkeys(("fork-dirty", "pagetable-latency", "dirty-guest-spml", "domu-latency"), LARGE),
    **dict.fromkeys(("fork-big", "toolstack"), LARGE),
    **dict.fromkeys(("dirty-boehm", "dirty-criu", "dirty-criu-native"), LARGE),
    "pagetable-browser": "a browser of 250 MB, twice",
    "pagetable-desktop": "a desktop, twice",
    **dict.fromkeys(("pagetable-types", "pagetable-size", "pagetable-iotlb-model"), LARGE),
    **dict.fromkeys(("power-benchmarks", "power-replay"), LARGE),
    "power-two-vcpus": "its kernel is not built for make check",
    "power-emulation": "its emulator is compiled for make check-long",
    "linux-series": "its kernels are compiled for make check-long",
}


def _marked(name: str) -> object:
    why = WHY_LONG.get(name)
    return pytest.param(name, marks=pytest.mark.long(why)) if why else name


def _need_criu() -> None:
    """Skip where criu does not know the kernel; dirty/tests/stock runs the experiment with another."""
    try:
        criu_native.criu()
    except LabError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [_marked(name) for name in KEYS])
def test_runs_and_holds(name: str, tmp_path: Path) -> None:
    if name == "dirty-criu-native":
        _need_criu()
    target = tmp_path / "result.json"
    ran = CliRunner().invoke(
        cli.main, ["run", name, "--quick", "--json", str(target), "--plots", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.output
    written = json.loads(target.read_text())
    assert written["experiment"] == name
    assert {"unit", "method", "machine", "rows", "paper"} <= set(written)
    for key, inner in KEYS[name].items():
        assert key in written
        if inner:
            assert set(written[key]) == inner


# Counted on a clock that counts instructions, whatever the host does meanwhile.
TWICE = ("power-exits", "pagetable-iotlb-model")
APART = 0.01


def _numbers(value: object, at: str = "") -> dict[str, float]:
    """Return every number of a result by its place."""
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in _numbers(inner, f"{at}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, inner in enumerate(value) for k, v in _numbers(inner, f"{at}/{i}").items()}
    return {at: float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def moved(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the figures of which two runs differ."""
    a, b = (_numbers(one["rows"]) for one in (first, second))
    assert a and set(a) == set(b)
    return [
        f"{at}: {a[at]:g} and {b[at]:g}"
        for at in a
        if abs(a[at] - b[at]) > APART * max(abs(a[at]), abs(b[at]), 10)
    ]


@pytest.mark.long("two runs of an experiment")
@pytest.mark.parametrize("name", TWICE)
def test_counted_figures_are_the_same_twice(name: str, tmp_path: Path) -> None:
    found = []
    for target in (tmp_path / "first.json", tmp_path / "second.json"):
        ran = CliRunner().invoke(cli.main, ["run", name, "--quick", "--json", str(target)])
        assert ran.exit_code == 0, ran.output
        found.append(json.loads(target.read_text()))
    assert moved(*found) == []


def test_a_figure_that_differs_is_named() -> None:
    first = {"rows": [{"a": 1000, "b": 0.0, "name": "x", "model": True}]}
    assert moved(first, {"rows": [{"a": 1005, "b": 0.05, "name": "y", "model": True}]}) == []
    assert moved(first, {"rows": [{"a": 1020, "b": 0.0, "name": "x", "model": True}]}) == [
        "/0/a: 1000 and 1020"
    ]
