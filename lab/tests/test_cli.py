# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Experiments, their registry, their reports and the command line."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import trapless_lab
from trapless_lab import catalogue, cli
from trapless_lab.errors import LabError
from trapless_lab.experiment import experiment, plots, report
from trapless_lab.experiment.experiment import Check, Context, Experiment, Result, Target
from trapless_lab.machines.machine import MACHINES


def result(*, holds: bool = True, keys: dict[str, object] | None = None) -> Result:
    return Result(
        unit="apples",
        method="counted",
        rows=[{"kind": "red", "count": 1234}, {"kind": "green", "ratio": 0.5}],
        paper=[{"kind": "red", "count": 1}],
        checks=[Check("enough", holds, "1234 are enough")],
        machine=experiment.machine_facts([MACHINES["bare"]], {"qemu": "7"}),
        keys=keys or {"stock": {"a": 1}},
    )


def fake(found: Result | Exception) -> Experiment:
    def run(_context: Context) -> Result:
        if isinstance(found, Exception):
            raise found
        return found

    return Experiment("apples", "fruit", "Apples", "Figure 0", 1, run)


def invoke(monkeypatch: pytest.MonkeyPatch, found: Result | Exception, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(catalogue, "experiments", lambda: {"apples": fake(found)})
    ran = CliRunner().invoke(cli.main, ["run", "apples", *arguments])
    return ran.exit_code, ran.output


def test_registry_knows_the_contract() -> None:
    known = catalogue.experiments()
    assert {"process-latency", "pagetable-flushes"} <= set(known)
    assert list(known) == sorted(known)
    assert all(name == entry.name and entry.minutes > 0 for name, entry in known.items())


def test_a_name_can_be_used_only_once() -> None:
    known = next(iter(catalogue.experiments()))
    with pytest.raises(ValueError, match=known):
        experiment.experiment(name=known, accelerator="", title="", reproduces="", minutes=1)(
            lambda _context: result()
        )


def test_list_and_machines() -> None:
    listed = CliRunner().invoke(cli.main, ["list"])
    assert listed.exit_code == 0 and "process-latency" in listed.output
    shown = CliRunner().invoke(cli.main, ["machines"])
    assert shown.exit_code == 0 and all(name in shown.output for name in MACHINES)


def test_list_as_json() -> None:
    ran = CliRunner().invoke(cli.main, ["list", "--json"])
    listed = {entry["name"]: entry for entry in json.loads(ran.output)}
    assert set(listed) == set(catalogue.experiments())
    assert listed["process-latency"]["minutes"] > 0 and listed["process-latency"]["reproduces"]


def test_version() -> None:
    ran = CliRunner().invoke(cli.main, ["--version"])
    assert ran.exit_code == 0 and ran.output == f"trapless-lab, version {trapless_lab.__version__}\n"


def test_the_lab_has_the_workspaces_version() -> None:
    workspace = Path(__file__).resolve().parents[2] / "Cargo.toml"
    if not workspace.exists():
        pytest.skip("no Cargo workspace at the root")
    package = tomllib.loads(workspace.read_text())["workspace"]["package"]
    assert package["version"] == trapless_lab.__version__


def test_unknown_experiment_lists_the_known() -> None:
    ran = CliRunner().invoke(cli.main, ["run", "pears"])
    assert ran.exit_code == 2
    assert "process-latency" in ran.output


def test_json_has_the_contract_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, _ = invoke(monkeypatch, result(), "--json", str(target))
    assert code == 0
    assert list(json.loads(target.read_text())) == [
        *("experiment", "unit", "method", "machine", "rows", "paper", "checks", "targets"),
        "stock",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_failed_check_fails_the_command_and_still_reports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "out.json"
    code, output = invoke(monkeypatch, result(holds=False), "--json", str(target))
    assert code == 1
    assert "FAILS" in output
    assert json.loads(target.read_text())["checks"][0]["holds"] is False


def test_missed_target_is_shown_and_does_not_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "out.json"
    found = replace(result(), targets=[Target("few", 1234, 900), Target("fewer", 900, 900)])
    code, output = invoke(monkeypatch, found, "--json", str(target))
    assert code == 0
    assert "MISSED  target few: 1,234, at most 900 wanted\nreached  target fewer: 900" in output
    assert json.loads(target.read_text())["targets"] == [
        {"name": "few", "measured": 1234, "at_most": 900, "reached": False},
        {"name": "fewer", "measured": 900, "at_most": 900, "reached": True},
    ]


def test_a_reached_target_does_not_save_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke(monkeypatch, replace(result(holds=False), targets=[Target("few", 1, 2)]))
    assert code == 1
    assert "FAILS" in output and "reached" in output


def test_wide_tables_are_transposed_unless_that_makes_them_wider(capsys: pytest.CaptureFixture[str]) -> None:
    def first_heading(rows: int) -> str:
        wide = replace(result(), rows=[dict.fromkeys("abcdef", i) for i in range(rows)], paper=[])
        report.show(Console(width=200), fake(wide), wide)
        return capsys.readouterr().out.splitlines()[2]

    assert "f" not in first_heading(3)
    assert "f" in first_heading(6)


def test_error_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke(monkeypatch, LabError("qemu is missing"))
    assert (code, output) == (1, "Error: qemu is missing\n")


def test_json_on_standard_output_is_alone_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "experiments", lambda: {"apples": fake(result())})
    ran = CliRunner().invoke(cli.main, ["run", "apples", "--json", "-"])
    assert json.loads(ran.stdout)["experiment"] == "apples"
    assert "holds  enough" in ran.stderr


def test_a_result_that_cannot_be_written_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke(monkeypatch, result(), "--json", "/dev/full")
    assert code == 1
    assert "holds  enough" in output and "cannot write /dev/full: No space left" in output


def test_unwritable_plots_are_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke(monkeypatch, AssertionError("it ran"), "--plots", "/proc/plots")
    assert code == 1
    assert "cannot write to /proc/plots" in output


@pytest.mark.parametrize("target", ["/no/such/dir/x.json", "/proc/x.json", "/tmp"])
def test_unwritable_json_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    code, output = invoke(monkeypatch, AssertionError("it ran"), "--json", target)
    assert code == 1
    assert target in output


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(TypeError):
        report.write(target, {"x": object()})
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_keys_must_not_shadow_the_contract() -> None:
    with pytest.raises(ValueError, match="rows"):
        report.as_json(fake(result()), result(keys={"rows": []}))


def test_terminal_report(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(Console(width=100), fake(result()), result())
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("1,234", "0.50", "In the paper", "holds  enough"))


def test_plots_are_png(tmp_path: Path) -> None:
    plots.lines(tmp_path / "new" / "l.png", {"a": ([1, 2], [3, 4])}, x="x", y="y", title="t")
    plots.bars(tmp_path / "b.png", ["g", "h"], {"a": [1, 2], "b": [2, 3]}, y="y", title="t")
    for path in (tmp_path / "new" / "l.png", tmp_path / "b.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
