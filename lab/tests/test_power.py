# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Power machines without a boot: their command lines and scripts, and a recorded run."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recorded import DATA
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.experiment.plots import Album
from trapless_lab.power import machine as power
from trapless_lab.power.console import Console
from trapless_lab.power.experiments import exits as power_exits
from trapless_lab.power.machine import MODES, Vm
from trapless_lab.progress import Progress

ROOT = Path(__file__).parents[2]
Forge = Callable[[str, str], str]
"""Mode and console -> the console to use instead."""


def recorded(mode: str) -> str:
    return (DATA / "power-exits" / f"{mode}.log").read_text()


def run(
    monkeypatch: pytest.MonkeyPatch, forge: Forge = lambda _, text: text, plots: Album | None = None
) -> Result:
    def bare(*_args: Any, **_options: Any) -> Console:
        return Console(forge("bare", recorded("bare")))

    def in_host(*_args: Any, label: str, **_options: Any) -> Console:
        return Console(forge(label, recorded(label)))

    monkeypatch.setattr(power, "bare", bare)
    monkeypatch.setattr(power, "in_host", in_host)
    return power_exits.power_exits(Context(quick=True, progress=Progress(), plots=plots, shared=True))


def failing(result: Result) -> list[str]:
    return [check.name for check in result.checks if not check.holds]


def test_the_recorded_run_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, plots=(album := Album()))
    assert not failing(result)
    for mode in ("bare", *power_exits.QUICK_GUESTS):
        assert set(result.keys[mode]) == {"boot", "getppid", "fork", "exec", "emulated", "exits"}
        assert set(result.keys["small_pages"][mode]) == set(result.keys[mode])
    assert result.keys["bare"]["exits"] == 0
    assert result.keys["base"]["exits"] == sum(result.keys["sources"]["base"].values())
    assert len(album.drawn["power-exits.png"]) > 1000
    for backing in power_exits.BACKINGS:
        rows = {row["workload"]: row for row in result.rows if row["backing"] == backing}
        assert set(rows) >= set(power_exits.PAPER)
        assert rows["ctx_2p0k"]["inplace_spread"].count(" to ") == 1


def test_every_workload_that_is_measured_is_named() -> None:
    # What the others have are checks.
    sources = {path.stem: path.read_text() for path in (ROOT / "power/guest").glob("*.c")}
    lists = [text for name, text in sources.items() if name not in ("modules", "memory", "huge_pages")]
    there = {name for text in lists for name in re.findall(r'^\t\{ "(\w+)", run_', text, re.MULTILINE)}
    assert there == {*power_exits.WORKLOADS, power_exits.TEXT}


def test_of_repeated_workloads_the_median_counts() -> None:
    console = Console("".join(f"result ctx {ticks} 10\n" for ticks in (80, 8000, 88, 96, 16)))
    assert [one.ticks for one in console.samples["ctx"]] == [80, 8000, 88, 96, 16]
    assert console.results["ctx"].ticks == 88
    assert Console("result ctx 80 10\nresult ctx 8 1\nresult ctx 8 10\n").results["ctx"].ticks == 80
    assert Console("result a 3 1\nresult a 1 1\n").results["a"].ticks == 1


def test_failures_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def emulating(mode: str, text: str) -> str:
        return text + "bare| emulated fork 36\n" if mode == "bare" else text

    def slower(mode: str, text: str) -> str:
        return text.replace("result syscall ", "result syscall 999") if mode == "inplace" else text

    def lacking(mode: str, text: str) -> str:
        return text.replace("result pipe ", "no result pipe ") if mode == "base" else text

    def exiting(mode: str, text: str) -> str:
        old = "inplace-boot.statistics| dec_exits:"
        return text.replace(old, old + "9999999") if mode == "inplace" else text

    def without_text(where: str) -> Forge:
        return lambda mode, text: text.replace("result textsum ", "no ") if mode == where else text

    assert failing(run(monkeypatch, without_text("base"))) == []
    with pytest.raises(LabError, match="base lacks textsum"):
        run(monkeypatch, without_text("base-small"))
    assert failing(run(monkeypatch, emulating)) == ["no FPU"]
    assert failing(run(monkeypatch, slower)) == ["in place is faster"]
    assert failing(run(monkeypatch, exiting)) == ["fewer exits"]
    with pytest.raises(LabError, match="base lacks pipe"):
        run(monkeypatch, lacking)


def test_counters_without_exits_are_an_error() -> None:
    with pytest.raises(LabError, match="no exits at all"):
        power_exits.sources({"sum_exits": 7, "dec_exits": 0, "bt_sites": 3})
    assert power_exits.sources({"dec_exits": 1, "mmio_exits": 2, "light_exits": 9}) == {"mmio": 2, "dec": 1}


def test_programs_are_distinguished() -> None:
    console = Console(
        "result fork 10 2\na| result fork 80 2\nb| result exec 3 1\na| done\na.statistics| x:4\n"
    )
    assert console.of("a").text == "result fork 80 2\ndone\n"
    assert console.of("a").results["fork"].instructions == 50
    assert set(console.results) == {"fork"}
    assert console.statistics("a") == {"x": 4}


def test_a_script_sets_the_mode_before_it_runs() -> None:
    lines = power.one_after_another(
        [Vm("a", MODES["inplace"], "run=boot"), Vm("b", MODES["base"], "run=boot")]
    )
    assert [line.split()[0] for line in lines] == ["write", "run", "show", "write", "run", "show"]
    assert lines[0].endswith("bt_mode 2") and lines[3].endswith("bt_mode 0")
    assert " --driver " in lines[1] and "--driver" not in lines[4]
    assert 'start=@TICKS@"' in lines[1]


def test_guests_at_once_have_one_mode() -> None:
    two = [Vm("a", MODES["inplace"], ""), Vm("b", MODES["inplace"], "")]
    assert [line.split()[0] for line in power.side_by_side(two)] == [
        *("write", "start", "start", "wait", "show", "show")
    ]
    with pytest.raises(ValueError, match="one mode"):
        power.side_by_side([two[0], Vm("b", MODES["base"], "")])


GOOD = "a| result boot 1 1\na| done\nended a 0\ndone\n"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (GOOD.replace("a| done\n", "a| Kernel panic - not syncing\n"), "exit code 0.*\n.*\n.*panic"),
        (GOOD.replace("ended a 0", "ended a 1"), "exit code 1"),
        (GOOD.replace("ended a 0\n", ""), "not run to its end"),
        (GOOD.replace("a| done", "a| not done"), "did not complete its workloads"),
    ],
)
def test_an_incomplete_guest_is_an_error(
    bad: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for part in (
        "kernel/vmlinux",
        "vmm/trapless-power-vmm",
        *(f"guest/{name}" for name in ("init", "echo", "sh")),
    ):
        path = tmp_path / "power" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    script = power.one_after_another([Vm("a", MODES["base"], "run=boot")])
    monkeypatch.setattr(power, "_run", lambda *_args: Console(GOOD))
    power.in_host(script)
    monkeypatch.setattr(power, "_run", lambda *_args: Console(bad))
    with pytest.raises(LabError, match=why):
        power.in_host(script)
