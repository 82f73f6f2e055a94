# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Adaptive splitting and the replay of its layout, and exits by benchmark: on consoles, valid and invalid
ones. test_experiments.py boots the machines.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.power import machine as power
from trapless_lab.power.console import TICKS_PER_INSTRUCTION, Console
from trapless_lab.power.experiments import benchmarks as power_benchmarks
from trapless_lab.power.experiments import replay as power_replay
from trapless_lab.power.experiments.replay import EMPTY, LOADED, UNLOADED, WORKLOADS
from trapless_lab.progress import Progress

Change = Callable[[str, str, str], str]
"""Label of the host, label of a guest and its output -> the output to use instead."""


def said(host: str, guest: str) -> str:
    """Return a guest's output; with splitting it takes 2 % longer."""
    adaptive, empty = host == "adaptive", guest == EMPTY
    start = {LOADED: 8_100, UNLOADED: 8_000}.get(guest, 10_200 if adaptive else 10_000)
    workload = "boot" if empty else guest
    counters = {
        "bt_splits": 6 if adaptive else 0,
        "bt_traced_loads": 190 if adaptive else 200_000 if empty else 0,
        **dict.fromkeys(("bt_traced_stores", "bt_traced_cacheops"), 1),
        **dict.fromkeys(("itlb_virt_miss_exits", "dtlb_virt_miss_exits"), 300),
    }
    statistics = [f"{name}:{count}" for name, count in counters.items()]
    statistics += ["bt_layout:c28 16 traced", "bt_layout:c29 4096"]
    lines = [f"{guest}| result kernel_boot {start} 1"]
    lines.append(f"{guest}| result {workload} {start * (10 if empty else 2)} 2")
    return "".join(f"{line}\n" for line in (*lines, *(f"{guest}.statistics| {one}" for one in statistics)))


def replay(monkeypatch: pytest.MonkeyPatch, change: Change = lambda _host, _guest, text: text) -> Result:
    def in_host(script: Sequence[str], *, label: str, files: Any, **_options: Any) -> Console:
        guests = [line.split()[1] for line in script if line.startswith("run ")]
        given = {line.split("--bt-layout ")[1].split()[0] for line in script if "--bt-layout" in line}
        assert given <= files.keys()
        return Console("".join(change(label, guest, said(label, guest)) for guest in guests))

    monkeypatch.setattr(power, "in_host", in_host)
    return power_replay.power_replay(Context(quick=True, progress=Progress()))


def failing(result: Result) -> list[str]:
    return [check.name for check in result.checks if not check.holds]


def test_a_layout_is_taken_from_a_guests_statistics() -> None:
    console = Console(said("adaptive", "boot") + said("adaptive", "find"))
    assert console.layout("boot") == "c28 16 traced\nc29 4096\n"
    assert console.layout("nobody") == ""
    assert power_replay.sizes(console, "find") == {"c28": 16, "c29": 4096}


def test_overhead_is_the_time_that_a_replay_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    result = replay(monkeypatch)
    assert not failing(result)
    assert [row["workload"] for row in result.rows] == list(WORKLOADS)
    assert {row["overhead_percent"] for row in result.rows} == {2.0}
    assert result.keys["loading"] == round(100 / TICKS_PER_INSTRUCTION)
    boot, find = result.rows[0], result.rows[2]
    assert boot["adaptive"] == round(20_400 / TICKS_PER_INSTRUCTION)
    assert find["adaptive"] == round(30_600 / TICKS_PER_INSTRUCTION)


@pytest.mark.parametrize(
    ("host", "guest", "old", "new", "fails"),
    [
        ("replayed", "find", "bt_splits:0", "bt_splits:1", "a replay splits nothing"),
        ("replayed", EMPTY, "bt_splits:0", "bt_splits:1", "a replay splits nothing"),
        ("adaptive", "find", "bt_splits:6", "bt_splits:0", "a replay splits nothing"),
        ("replayed", "sh", "c28 16", "c28 64", "a replay has the sizes that were recorded"),
        ("replayed", "exec", "loads:0", "loads:100", "what is left of traced accesses is few"),
        ("replayed", EMPTY, "loads:200000", "loads:200", "an empty layout makes a difference"),
    ],
)
def test_an_invalid_replay_is_found(
    monkeypatch: pytest.MonkeyPatch, host: str, guest: str, old: str, new: str, fails: str
) -> None:
    def change(of: str, label: str, text: str) -> str:
        assert (of, label) != (host, guest) or old in text
        return text.replace(old, new) if (of, label) == (host, guest) else text

    assert failing(replay(monkeypatch, change)) == [fails]


def test_a_benchmarks_exits_are_its_own() -> None:
    started = power_benchmarks.classes({"mfspr": 50, "dtlb_real_miss": 3, "dec": 2})
    whole = power_benchmarks.classes(
        {"mfspr": 80, "wrtee": 60, "dtlb_real_miss": 5, "itlb_real_miss": 1, "dec": 9}
    )
    found = power_benchmarks.own(whole, started)
    assert (found["mfspr"], found["wrtee"], found["tlb_real"], found["others"]) == (30, 60, 3, 7)
    row = power_benchmarks.row("fork", found, 10)
    assert (row["exits"], row["mfspr"], row["wrtee"], row["dsi"]) == (10.0, 30.0, 60.0, 0.0)
    assert power_benchmarks.less({"fork": found}) == []
    assert power_benchmarks.less({"fork": power_benchmarks.own(started, whole)}) == ["fork"]


def test_the_papers_boot_adds_up() -> None:
    row = power_benchmarks.paper_row()
    shares = [share for name, share in row.items() if name not in ("workload", "exits")]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert (row["mfspr"], row["wrtee"], row["mtspr"]) == (33.8, 21.0, 17.4)
