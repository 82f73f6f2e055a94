# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Experiments, their registry, their reports and the command line."""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import trapless_lab
from trapless_lab import catalogue, cli
from trapless_lab.errors import LabError
from trapless_lab.experiment import experiment, report
from trapless_lab.experiment.experiment import Check, Context, Experiment, Result, Target
from trapless_lab.experiment.plots import Album
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


def test_the_documents_have_the_minutes_of_list() -> None:
    results = Path(__file__).resolve().parents[2] / "docs/results.md"
    if not results.exists():
        pytest.skip("no documents")
    said = dict(re.findall(r"^\| `([a-z-]+)` \| .* \| (\d+) \|$", results.read_text(), re.M))
    known = {name: str(entry.minutes) for name, entry in catalogue.experiments().items()}
    assert {name: said.get(name) for name in known} == known


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
    found = replace(
        result(), targets=[Target("few", 1234, 900, "it rained"), Target("fewer", 900, 900, "dry")]
    )
    code, output = invoke(monkeypatch, found, "--json", str(target))
    assert code == 0
    assert "MISSED  target few: 1,234, at most 900 wanted (it rained)\nreached" in output
    assert "dry" not in output
    assert json.loads(target.read_text())["targets"] == [
        {"name": "few", "measured": 1234, "at_most": 900, "reached": False, "reason": "it rained"},
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


@pytest.fixture
def apples(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line in a process of its own, whose one experiment, or profile, ends at once."""
    program = tmp_path / "program.py"
    program.write_text(
        "import test_cli as t\n"
        "from trapless_lab import catalogue, cli\n"
        "catalogue.experiments = lambda: {'apples': t.replace(t.fake(t.result()), run=t.drawing)}\n"
        "cli.main()\n"
    )

    def run(arguments: str, shell: str = "") -> subprocess.CompletedProcess[str]:
        command = f"{sys.executable} {program} {arguments} {shell}"
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("shell", "why"),
    [
        (">/dev/full", "No space left on device"),
        ("| exec true", "Broken pipe"),
        (">&-", "Bad file descriptor"),
        ("<&- >&-", "Bad file descriptor"),
    ],
)
def test_a_result_is_written_although_it_cannot_be_shown(
    apples: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, shell: str, why: str
) -> None:
    ran = apples("run apples --json out.json --plots pictures", shell)
    assert ran.returncode == 1
    assert ran.stderr == f"{ONE_VALUE}Error: cannot write standard output: {why}\n"
    assert json.loads((tmp_path / "out.json").read_text())["experiment"] == "apples"
    assert (tmp_path / "pictures" / "l.png").exists()


@pytest.mark.parametrize(
    ("shell", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("arguments", ["list", "list --json", "machines", "--version", "run --help"])
def test_a_standard_output_that_cannot_be_written_is_one_message(
    apples: Callable[..., subprocess.CompletedProcess[str]], arguments: str, shell: str, why: str
) -> None:
    ran = apples(arguments, shell)
    assert ran.returncode == 1
    assert ran.stderr == f"Error: cannot write standard output: {why}\n"


def test_a_closed_standard_error_is_no_error(apples: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    ran = apples("run apples --json out.json --plots pictures", "<&- 2>&-")
    assert ran.returncode == 0 and "apples" in ran.stdout


def test_one_file_for_two_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("out")
    arguments = ["profile", "xen-strict", "--json", str(tmp_path / "out"), "--folded", str(tmp_path / "link")]
    ran = CliRunner().invoke(cli.main, [*arguments, "--", "true"])
    assert ran.exit_code == 2 and "two results cannot go to one file" in ran.output


def test_standard_output_is_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke(monkeypatch, AssertionError("it ran"), "--plots", "-")
    assert code == 2 and "where a directory is wanted" in output


def test_a_path_that_fails_within_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke(monkeypatch, FileExistsError(errno.EEXIST, "File exists", "logs/stock"))
    assert (code, output) == (1, "Error: logs/stock: File exists\n")


def test_what_was_kept_elsewhere_is_told_also_if_drawing_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Album, "save", lambda *_: 1 / 0)
    code, output = invoke_drawing(monkeypatch, "--plots", str(tmp_path / "new"), "--json", "/dev/full")
    (kept,) = tmp_path.glob("trapless-lab.*")
    assert code == 1 and f"it is in {kept}" in output


def test_brackets_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    odd = replace(result(), checks=[Check("[x] of", True, "ok [/x]")], rows=[{"a[b]": "[c]"}])
    report.show(Console(width=100), fake(odd), odd)
    shown = capsys.readouterr().out
    assert "holds  [x] of: ok [/x]" in shown and "a[b]" in shown and "[c]" in shown


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


@pytest.mark.debian12("another host has one pair")
def test_a_run_is_of_the_pair_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(context: Context) -> Result:
        ran.append(context.pair.name)
        return result()

    both = replace(fake(result()), run=run, pairs=("debian12", "debian13"))
    monkeypatch.setattr(catalogue, "experiments", lambda: {"apples": both})
    for arguments in ([], ["--pair", "debian13"]):
        assert CliRunner().invoke(cli.main, ["run", "apples", *arguments]).exit_code == 0
    assert ran == ["debian12", "debian13"]


@pytest.mark.debian12("another host has one pair")
@pytest.mark.parametrize(
    ("pair", "said"),
    [("debian13", "apples runs on debian12 only"), ("debian11", "'debian11' is not one of 'debian12'")],
)
def test_a_pair_that_it_does_not_run_on_is_refused(
    monkeypatch: pytest.MonkeyPatch, pair: str, said: str
) -> None:
    code, output = invoke(monkeypatch, AssertionError("it ran"), "--pair", pair)
    assert code == 2 and said in output


# Plots are tested in test_plots.py; here, that a run saves them, and loses no result by them.


ONE_VALUE = "no plot one.png: there is one value only of: sizes\n"


def drawing(context: Context) -> Result:
    assert context.plots is not None
    context.plots.lines("l.png", {"a": ([1, 2], [3, 4])}, x="x", y="y", title="t")
    context.plots.lines("one.png", {"a": ([1], [3])}, x="sizes", y="y", title="t")
    return result()


def invoke_drawing(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    drawn = replace(fake(result()), run=drawing)
    monkeypatch.setattr(catalogue, "experiments", lambda: {"apples": drawn})
    ran = CliRunner().invoke(cli.main, ["run", "apples", *arguments])
    return ran.exit_code, ran.output


def test_plots_are_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, output = invoke_drawing(monkeypatch, "--plots", str(tmp_path / "new"))
    assert code == 0 and "no plot one.png: there is one value only of: sizes" in output
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["l.png"]


def test_a_plot_that_cannot_be_written_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "l.png").symlink_to("/dev/full")
    target = tmp_path / "out.json"
    code, output = invoke_drawing(monkeypatch, "--plots", str(tmp_path), "--json", str(target))
    assert code == 1
    assert "holds  enough" in output and f"cannot write {tmp_path / 'l.png'}: No space left" in output
    assert json.loads(target.read_text())["experiment"] == "apples"


def test_a_result_that_cannot_be_written_is_kept_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, output = invoke_drawing(monkeypatch, "--plots", str(tmp_path / "new"), "--json", "/dev/full")
    (kept,) = tmp_path.glob("trapless-lab.*")
    assert code == 1 and f"cannot write /dev/full: No space left on device; it is in {kept}" in output
    assert json.loads(kept.read_text())["experiment"] == "apples"
    assert (tmp_path / "new" / "l.png").exists(), "the plots are written nonetheless"
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    code, output = invoke(monkeypatch, result(), "--json", "/dev/full")
    assert code == 1 and "and it cannot be kept in /proc" in output and "holds  enough" in output
