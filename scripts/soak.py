# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs every system's soak tests in turn, on seeds that nobody has tried, and goes on where it was stopped.

A soak test is a program, ``SYSTEM/tests/soak/soak_NAME.py``, called SYSTEM-NAME. It is given one positive
number, its seed, and tries as much as some minutes allow. If everything held, it exits with 0, and the last
line that it prints is a JSON object: what it tried, and how often. Any other exit is a failure.

Invariants:

- What the journal has, was run: a line is written, and on disk, only when its batch has ended by itself. A
  batch that was interrupted is run again, with the same seed.
- One journal is about one version of the sources; the next version gets another folder. So hours of an older
  product are never counted for a newer one. Documents do not count: they say how long the soaks ran.
- A soak test that failed is not run again until it is asked for by --again, and the exit code is 1 until it
  has passed with that seed.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import jsonschema
from rich.console import Console

from trapless_lab import commands, output
from trapless_lab.errors import LabError
from trapless_lab.papers import sources

REPOSITORY = Path(__file__).resolve().parents[1]
SYSTEMS = ("pagetable", "dirty", "power")
PATTERN = "tests/soak/soak_*.py"
BATCH_LIMIT_S = 7200
SIGN_OF_LIFE_S = 10
FIRST_SEEDS = 100_000  # programs multiply a seed by what they use of them


class Stopped(Exception):
    """The user wants to stop."""


@dataclass(frozen=True)
class Soak:
    """One soak test."""

    name: str
    program: Path


@dataclass(frozen=True)
class Batch:
    """What one run of a soak test did; ``failure`` is empty if everything held."""

    soak: str
    seed: int
    began: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    failure: str = ""


_COUNT = {"type": "integer", "minimum": 0}
_COUNTS = jsonschema.Draft202012Validator(
    {
        "type": "object",
        "propertyNames": {"pattern": "^[ -{}~]+$"},  # ASCII, and no end of a table's cell
        "additionalProperties": _COUNT,
    }
)
_HEADER = jsonschema.Draft202012Validator(
    {"type": "object", "required": ["first_seed"], "properties": {"first_seed": _COUNT}}
)
_BATCH = jsonschema.Draft202012Validator(
    {
        "type": "object",
        "properties": {
            **{name: {"type": "string"} for name in ("soak", "began", "failure")},
            "seed": _COUNT,
            "seconds": {"type": "number", "minimum": 0, "maximum": 2 * BATCH_LIMIT_S},
            "counts": _COUNTS.schema,
        },
    }
)


@dataclass
class Journal:
    """The batches of one version of the sources, in the order in which they ended."""

    folder: Path
    first_seed: int
    batches: list[Batch]

    @property
    def file(self) -> Path:
        """Return where it is kept: a first line about all, then a line a batch."""
        return self.folder / "journal.jsonl"

    @classmethod
    def read(cls, folder: Path) -> "Journal":
        """Return the journal of a folder, which another process may be writing.

        A last line that is not whole is being written, or was when the machine stopped: its batch has not
        been. Raises LabError if another line cannot be read, OSError if there is no journal.
        """
        journal = cls(folder, 0, [])
        if journal.file.exists() and not journal.file.is_file():
            raise LabError(f"{journal.file} is no file")
        try:
            header, *lines = map(_parsed, _whole_lines(journal.file.read_bytes()).splitlines())
            _HEADER.validate(header)
            journal.first_seed = header["first_seed"]
            for line in lines:
                _BATCH.validate(line)
                journal.batches.append(Batch(**line))
        except (ValueError, TypeError, RecursionError, jsonschema.ValidationError) as error:
            why = error.message if isinstance(error, jsonschema.ValidationError) else error
            raise LabError(
                f"{journal.file} is not a journal of soak tests ({why}); move it away to begin anew"
            ) from error
        return journal

    @classmethod
    def opened(cls, folder: Path) -> "Journal":
        """Return the journal of a folder, to go on with; a new one if there is none."""
        journal = cls(folder, 1 + secrets.randbelow(FIRST_SEEDS), [])
        if not journal.file.exists():
            journal._append({"first_seed": journal.first_seed})
            return journal
        journal = cls.read(folder)
        text = journal.file.read_bytes()
        whole = _whole_lines(text)
        if whole != text:
            with journal.file.open("r+") as file:
                file.truncate(len(whole))
        return journal

    def add(self, batch: Batch) -> None:
        """Keep a batch that has ended."""
        self.batches.append(batch)
        self._append(asdict(batch))

    def _append(self, line: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def of(self, soak: str) -> list[Batch]:
        """Return the batches of one soak test."""
        return [batch for batch in self.batches if batch.soak == soak]

    def seconds(self, soak: str) -> float:
        """Return how long one was run."""
        return sum(batch.seconds for batch in self.of(soak))

    def next_seed(self, soak: str) -> int:
        """Return the seed of its next batch: again the last one if that failed."""
        past = self.of(soak)
        if past and past[-1].failure:
            return past[-1].seed
        return self.first_seed + len({batch.seed for batch in past})

    def failed(self, soak: str) -> bool:
        """Return whether its last batch failed."""
        past = self.of(soak)
        return bool(past and past[-1].failure)


def _whole_lines(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


def _parsed(line: bytes) -> Any:
    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON's")

    return json.loads(line, parse_constant=refused)


def found(repository: Path) -> list[Soak]:
    """Return every soak test of a repository."""
    return [
        Soak(f"{system}-{program.stem.removeprefix('soak_')}", program)
        for system in SYSTEMS
        for program in sorted((repository / system).glob(PATTERN))
    ]


def version(repository: Path) -> str:
    """Return a digest of the sources as they are, committed or not, but for documents.

    Raises LabError without git.
    """
    contents = sources.files(repository)
    names = [name for name in contents if not name.startswith("docs/") and not name.endswith(".md")]
    return sources.digest(contents, names)[:12]


def run(soak: Soak, seed: int, repository: Path, log: Path, console: Console) -> Batch:
    """Run one batch, with what it prints in ``log``.

    Raises Stopped when the user stops it, after everything that it started has ended.
    """
    system = soak.name.partition("-")[0]
    paths = [repository / system / "tests" / folder for folder in ("machine", "stock")]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "PYTHONUNBUFFERED": "1"}
    began, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    failure = ""
    with log.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, soak.program, str(seed)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=repository,
            env=environment,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                try:
                    child.wait(SIGN_OF_LIFE_S)
                except subprocess.TimeoutExpired:
                    console.print(
                        f"  {time.monotonic() - start:.0f} s: {_last_line(log)}"[:100], markup=False
                    )
                if time.monotonic() - start > BATCH_LIMIT_S:
                    failure = f"not done after {BATCH_LIMIT_S // 60} minutes"
                    break
        finally:
            _end(child)
    counts: dict[str, int] = {}
    if not failure and child.returncode:
        failure = f"exit code {child.returncode}: {_last_line(log)}"
    elif not failure:
        try:
            counts = json.loads(_last_line(log))
            _COUNTS.validate(counts)
        except (ValueError, RecursionError, jsonschema.ValidationError):
            failure = f"its last line is no JSON object of counts: {_last_line(log)}"
    return Batch(soak.name, seed, began, round(time.monotonic() - start, 3), counts, failure)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a batch and what it started: by an interrupt, as from a terminal, then by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            continue
    child.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""


def summary(journal: Journal, soaks: Iterable[Soak]) -> str:
    """Return a table in Markdown: what was run, for how long, what it tried, and what failed."""
    lines = ["| soak test | batches | hours | tried | held |", "| --- | ---: | ---: | --- | --- |"]
    for soak in soaks:
        past = journal.of(soak.name)
        tried: Counter[str] = Counter()
        for batch in past:
            tried.update(batch.counts)
        what = ", ".join(f"{count:,} {name}" for name, count in tried.items()) or "nothing"
        failures = [batch for batch in past if batch.failure]
        held = "yes" if past else "not run"
        if failures:
            held = f"NO: failed {len(failures)} times, last with seed {failures[-1].seed}"
            held += "" if journal.failed(soak.name) else ", which passed since"
        lines.append(
            f"| {soak.name} | {len(past)} | {journal.seconds(soak.name) / 3600:.2f} | {what} | {held} |"
        )
    return "\n".join(lines)


def _stop(*_: object) -> None:
    raise Stopped


@click.command(
    cls=commands.Command, help="Run soak tests until they have run for HOURS in all, each for its share."
)
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=8.0, show_default=True)
@click.option(
    "--only", "only", multiple=True, metavar="NAME", help="A soak test, or a system; may be repeated."
)
@click.option("--again", is_flag=True, help="Run those that failed once more, with the seed that failed.")
@click.option("--summary", "only_summary", is_flag=True, help="Print what was run so far, and run nothing.")
@click.option("--list", "only_list", is_flag=True, help="Print the names of the soak tests.")
@click.option(
    "--journal",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep journal and logs here.  [default: results/soak/VERSION]",
)
@click.option("--repository", type=click.Path(path_type=Path), default=REPOSITORY, hidden=True)
def main(
    hours: float,
    only: tuple[str, ...],
    again: bool,
    only_summary: bool,
    only_list: bool,
    folder: Path | None,
    repository: Path,
) -> None:
    """Run batches: always of the test that has run least."""
    soaks = found(repository)
    if unknown := [name for name in only if not any(_is(soak, name) for soak in soaks)]:
        names = ", ".join(soak.name for soak in soaks)
        raise click.UsageError(f"no soak test is called {', '.join(unknown)}; there are {names}")
    soaks = [soak for soak in soaks if not only or any(_is(soak, name) for name in only)]
    if only_list:
        click.echo("\n".join(soak.name for soak in soaks))
        return
    folder = folder or repository / "results" / "soak" / version(repository)
    stopped = False
    if only_summary:
        try:
            journal = Journal.read(folder)
        except FileNotFoundError as error:
            raise LabError(f"nothing was run yet: there is no {error.filename}") from error
        click.echo(summary(journal, soaks))
    else:
        # Two runs would try the same seeds and share a journal.
        with output.alone(folder, "other soak tests are running with it"):
            journal = Journal.opened(folder)
            stopped = _run_all(journal, soaks, hours, again, repository)
            click.echo(summary(journal, soaks))
    if stopped:
        click.echo(f"stopped; the same command goes on from {journal.file}", err=True)
        sys.exit(130)
    if any(journal.failed(soak.name) for soak in soaks):
        sys.exit(1)


def _is(soak: Soak, name: str) -> bool:
    return name in (soak.name, soak.name.partition("-")[0])


def _run_all(journal: Journal, soaks: list[Soak], hours: float, again: bool, repository: Path) -> bool:
    """Run batches until the time is over; return whether the user stopped it before."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    stops = [signal.SIGINT, signal.SIGTERM]  # SIGINT too where a script's "&" left it ignored
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup leaves it so
        stops.append(signal.SIGHUP)
    for number in stops:
        signal.signal(number, _stop)
    repeat = {soak.name for soak in soaks if again and journal.failed(soak.name)}
    try:
        while True:
            done = sum(journal.seconds(soak.name) for soak in soaks)
            able = [soak for soak in soaks if soak.name in repeat or not journal.failed(soak.name)]
            able = [soak for soak in able if soak.name in repeat] or (able if done < 3600 * hours else [])
            if not able:
                return False
            soak = min(able, key=lambda soak: journal.seconds(soak.name))
            repeat.discard(soak.name)
            seed = journal.next_seed(soak.name)
            log = journal.folder / f"{soak.name}-{seed}.log"
            console.print(
                f"soak: {done / 3600:.2f} of {hours:g} hours; {soak.name}, seed {seed}", markup=False
            )
            batch = run(soak, seed, repository, log, console)
            journal.add(batch)
            if batch.failure:
                console.print(
                    f"soak: {soak.name} FAILED with seed {seed}: {batch.failure}; {log}", markup=False
                )
            else:
                log.unlink()
    except Stopped:
        return True


if __name__ == "__main__":
    main()
