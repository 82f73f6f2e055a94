# SPDX-License-Identifier: Apache-2.0 OR MIT
"""scripts/soak.py: what was run is kept, what was interrupted is run again, and a failure stays one.

Over soak tests of a made-up repository, which write down each seed that they are given.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trapless_lab import output

SCRIPT = Path(__file__).resolve().parents[1] / "soak.py"
HOLDS = """
import json, pathlib, sys
with pathlib.Path(__file__).with_suffix(".seeds").open("a") as seeds:
    seeds.write(sys.argv[1] + "\\n")
print("some progress")
print(json.dumps({"calls": 1000}))
"""
FAILS_AT_SECOND = """
import json, pathlib, sys
file = pathlib.Path(__file__).with_suffix(".seeds")
with file.open("a") as seeds:
    seeds.write(sys.argv[1] + "\\n")
if len(file.read_text().split()) == 2:
    print("call 17: the model says 3, the kernel 4")
    sys.exit(1)
print(json.dumps({"forks": 5}))
"""
HANGS = """
import pathlib, subprocess, sys, time
pathlib.Path(__file__).with_suffix(".seeds").write_text(sys.argv[1] + "\\n")
child = subprocess.Popen(["sleep", "1000"])
pathlib.Path(__file__).with_suffix(".child").write_text(str(child.pid))
time.sleep(1000)
"""


class Tree:
    """A repository with soak tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, system: str, name: str, text: str) -> Path:
        file = self.folder / system / "tests" / "soak" / f"soak_{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(SCRIPT), "--repository", str(self.folder), *arguments]

    def soak(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ("--journal", str(self.folder / "kept"))
        return subprocess.run(
            self.command(*where, *arguments), capture_output=True, text=True, check=False, timeout=120
        )

    def lines(self) -> list[dict[str, object]]:
        text = (self.folder / "kept" / "journal.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def seeds(program: Path) -> list[int]:
    return [int(line) for line in program.with_suffix(".seeds").read_text().split()]


def runs(process: int) -> bool:
    """Return whether it has not ended; its new parent may not have noticed yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Ends after the first batches: a batch takes longer than this.
A_MOMENT = "0.0000001"
MORE = "0.0002"
RUNS_OF_BOTH = "0.001"  # several of each program, on a busy host as well


def test_every_test_runs_and_the_summary_has_what_it_tried(tree: Tree) -> None:
    programs = [tree.add("pagetable", "calls", HOLDS), tree.add("power", "other", HOLDS)]
    for program in programs:
        name = f"{program.parents[2].name}-{program.stem.removeprefix('soak_')}"
        result = tree.soak("--hours", A_MOMENT, "--only", name)
        assert result.returncode == 0, result.stderr
    shown = tree.soak("--summary")
    assert shown.returncode == 0
    assert "| pagetable-calls | 1 |" in shown.stdout and "1,000 calls | yes" in shown.stdout
    assert "| power-other | 1 |" in shown.stdout


def test_a_second_run_goes_on_with_the_next_seeds_until_the_hours_are_full(tree: Tree) -> None:
    program = tree.add("dirty", "calls", HOLDS)
    assert tree.soak("--hours", A_MOMENT).returncode == 0
    assert tree.soak("--hours", MORE).returncode == 0
    tried = seeds(program)
    assert len(tried) >= 2 and tried == list(range(tried[0], tried[0] + len(tried)))
    assert tree.soak("--hours", MORE).returncode == 0
    assert seeds(program) == tried, "the hours were full"


def test_a_journal_has_one_writer(tree: Tree) -> None:
    program = tree.add("dirty", "calls", HOLDS)
    with output.alone(tree.folder / "kept", "a test"):
        second = tree.soak("--hours", A_MOMENT)
        assert "nothing was run yet" in tree.soak("--summary").stderr
    assert second.returncode == 1 and "is in use: other soak tests" in second.stderr.replace("\n", " ")
    assert not program.with_suffix(".seeds").exists()
    assert tree.soak("--hours", A_MOMENT).returncode == 0


def test_what_was_run_so_far_can_be_read_while_a_batch_runs(tree: Tree) -> None:
    tree.add("dirty", "calls", HOLDS)
    assert tree.soak("--hours", A_MOMENT).returncode == 0
    journal = tree.folder / "kept" / "journal.jsonl"
    half = journal.read_bytes() + b'{"soak": "dirty-ca'
    journal.write_bytes(half)
    with output.alone(tree.folder / "kept", "a test"):
        shown = tree.soak("--summary")
    assert shown.returncode == 0 and "| dirty-calls | 1 |" in shown.stdout
    assert journal.read_bytes() == half, "a line that is being written is the writer's"


def test_the_test_that_ran_least_is_next(tree: Tree) -> None:
    slow = tree.add("dirty", "slow", "import time; time.sleep(0.5)\n" + HOLDS)
    quick = tree.add("dirty", "quick", HOLDS)
    assert tree.soak("--hours", RUNS_OF_BOTH).returncode == 0
    assert len(seeds(quick)) > len(seeds(slow)) >= 1


def test_a_failure_ends_that_test_alone_and_is_run_again_with_its_seed_when_asked(tree: Tree) -> None:
    bad, good = tree.add("dirty", "bad", FAILS_AT_SECOND), tree.add("power", "good", HOLDS)
    failed = tree.soak("--hours", RUNS_OF_BOTH)
    assert failed.returncode == 1
    assert "the model says 3, the kernel 4" in failed.stderr
    assert f"last with seed {seeds(bad)[1]}" in failed.stdout
    assert len(seeds(bad)) == 2 and seeds(good)
    log = tree.folder / "kept" / f"dirty-bad-{seeds(bad)[1]}.log"
    assert "the model says 3" in log.read_text()
    assert tree.soak("--hours", "1", "--only", "dirty").returncode == 1, "it failed, and was not run"
    assert len(seeds(bad)) == 2
    passed = tree.soak("--hours", MORE, "--only", "dirty", "--again")
    assert passed.returncode == 0
    assert seeds(bad)[2] == seeds(bad)[1] and "which passed since" in passed.stdout


@pytest.mark.parametrize(
    ("number", "before"),
    [
        (signal.SIGINT, "--default-signal=INT"),
        (signal.SIGINT, "--ignore-signal=INT"),  # as a script's "&" leaves it
        (signal.SIGTERM, "--default-signal=TERM"),
        (signal.SIGHUP, "--default-signal=HUP"),
    ],
)
def test_an_interrupted_batch_leaves_nothing_behind_and_is_run_again(
    tree: Tree, number: int, before: str
) -> None:
    program = tree.add("dirty", "hangs", HANGS)
    soak = subprocess.Popen(
        ["env", before, *tree.command("--journal", str(tree.folder / "kept"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child = program.with_suffix(".child")
    while not (child.exists() and child.read_text()):
        assert soak.poll() is None
        time.sleep(0.05)
    assert "other soak tests are running" in tree.soak("--hours", "1").stderr
    soak.send_signal(number)
    output, errors = soak.communicate(timeout=60)
    assert soak.returncode == 130 and "goes on from" in errors and "not run" in output
    assert not runs(int(child.read_text()))
    first = seeds(program)[0]
    program.write_text(HOLDS)
    assert tree.soak("--hours", A_MOMENT).returncode == 0
    assert first in seeds(program)


def test_a_line_that_was_being_written_is_as_if_the_batch_had_not_been(tree: Tree) -> None:
    program = tree.add("dirty", "calls", HOLDS)
    tree.soak("--hours", A_MOMENT)
    journal = tree.folder / "kept" / "journal.jsonl"
    whole = journal.read_text()
    journal.write_text(whole[: len(whole) - 20])
    assert tree.soak("--hours", A_MOMENT).returncode == 0
    tried = seeds(program)
    assert len(tried) == 2 and tried[0] == tried[1]
    assert len(tree.lines()) == 2


def test_another_file_is_refused_and_stays_as_it_is(tree: Tree) -> None:
    tree.add("dirty", "calls", HOLDS)
    journal = tree.folder / "kept" / "journal.jsonl"
    journal.parent.mkdir()
    batch = b'{"soak": "dirty-calls", "seed": 1, "began": "", "seconds": %s, "counts": %s}\n'
    for text in (
        b"notes\n",
        b"",
        b"\xff\n",
        b'["a"]\n',
        b'{"first_seed": 1}\n{"soak": "x"}\n',
        *(
            b'{"first_seed": 1}\n' + batch % wrong
            for wrong in ((b"NaN", b"{}"), (b"1", b'{"a": null}'), (b"1", b'{"\\ud800": 1}'))
        ),
    ):
        journal.write_bytes(text)
        for asked in (("--hours", A_MOMENT), ("--summary",)):
            result = tree.soak(*asked)
            assert result.returncode == 1 and "is not a journal" in result.stderr, result.stderr
            assert journal.read_bytes() == text
    journal.unlink()
    journal.mkdir()
    for asked in (("--hours", A_MOMENT), ("--summary",)):
        result = tree.soak(*asked)
        assert result.returncode == 1 and "is no file" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("last", ["", "done", "[1]", '{"calls": "many"}'])
def test_a_batch_that_does_not_say_what_it_tried_has_failed(tree: Tree, last: str) -> None:
    tree.add("dirty", "mute", f"print({last!r})\n")
    result = tree.soak("--hours", A_MOMENT)
    assert result.returncode == 1 and "no JSON object of counts" in result.stderr


def test_mistakes_of_the_user_are_named(tree: Tree) -> None:
    tree.add("dirty", "calls", HOLDS)
    result = tree.soak("--only", "dirtz")
    assert result.returncode == 2 and "dirty-calls" in result.stderr
    assert "nothing was run yet" in tree.soak("--summary").stderr
    assert tree.soak("--hours", "0").returncode == 2


def test_another_version_of_the_sources_has_a_journal_of_its_own(tree: Tree) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tree.folder, check=True, capture_output=True)

    program = tree.add(
        "dirty", "calls", HOLDS.replace(".with_suffix", ".parents[4].joinpath('s').with_suffix")
    )
    (tree.folder / ".gitignore").write_text("/results/\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "a")

    def journals() -> list[Path]:
        subprocess.run(tree.command("--hours", A_MOMENT), check=True, capture_output=True)
        return list((tree.folder / "results" / "soak").iterdir())

    assert len(journals()) == 1 and len(journals()) == 1
    program.write_text(program.read_text() + "\n")
    assert len(journals()) == 2
    git("commit", "-am", "b")
    assert len(journals()) == 2, "the same sources"
    for document in ("README.md", "docs/results.md"):
        (tree.folder / document).parent.mkdir(exist_ok=True)
        (tree.folder / document).write_text("It ran for two hours.\n")
    git("add", ".")
    git("commit", "-m", "c")
    assert len(journals()) == 2, "a document says how long they ran"
    (tree.folder / "new.c").write_text("")
    assert len(journals()) == 3


def test_this_repository_has_them() -> None:
    listed = subprocess.run(
        [sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True
    ).stdout
    assert {"pagetable-hypercalls", "pagetable-tables", "dirty-oracle", "power-differential"} <= set(
        listed.split()
    )
