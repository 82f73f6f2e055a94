# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The experiments that show what trapless is for, quickly, and one before-and-after table per accelerator.

Invariant: what the tables say was measured by this run; an experiment whose checks fail is named and makes
the run fail, after all the others have had their turn.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import catalogue
from .errors import LabError
from .experiment import report
from .experiment.experiment import Context, Experiment, Result
from .progress import Progress


@dataclass(frozen=True)
class Outcome:
    """One experiment of the demonstration and where its result is."""

    experiment: Experiment
    result: Result
    json: Path


def run(results: Path, shown: Progress) -> list[Outcome]:
    """Run the demonstration's experiments with fewer repetitions; JSON and plots go to ``results``."""
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot write results to {results}: {error.strerror}") from error
    outcomes = []
    for experiment in filter(lambda known: known.demo, catalogue.experiments().values()):
        target = results / f"{experiment.name}.json"
        report.require_writable(target)
        result = experiment.run(Context(quick=True, progress=shown, plots=results))
        report.write(target, report.as_json(experiment, result))
        outcomes.append(Outcome(experiment, result, target))
    return outcomes


def show(console: Console, outcomes: list[Outcome], results: Path) -> bool:
    """Print the tables and where the rest is. Return whether every check held."""
    for accelerator in dict.fromkeys(outcome.experiment.accelerator for outcome in outcomes):
        table = Table("measure", title=f"{accelerator}: before and after", title_justify="left")
        table.add_column("stock", justify="right")
        table.add_column("with trapless", justify="right")
        table.add_column("for comparison")
        for outcome in outcomes:
            if outcome.experiment.accelerator == accelerator:
                for line in outcome.result.summary:
                    table.add_row(line.measure, line.before, line.after, line.reference)
        console.print(table)
    failed = [
        (outcome.experiment.name, check)
        for outcome in outcomes
        for check in outcome.result.checks
        if not check.holds
    ]
    for name, check in failed:
        console.print(f"[red]FAILS[/]  {name}, {check.name}: {check.text}", soft_wrap=True)
    for outcome in outcomes:
        for target in outcome.result.targets:
            if not target.reached:
                console.print(f"{outcome.experiment.name}: {report.target_line(target)}", soft_wrap=True)
    plots = " ".join(str(plot) for plot in sorted(results.glob("*.png")))
    console.print(f"results: {' '.join(str(outcome.json) for outcome in outcomes)}", soft_wrap=True)
    console.print(f"plots: {plots}", soft_wrap=True)
    return not failed
