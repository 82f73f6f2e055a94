# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command line.

Invariant: exit code 0 only if the command ran to its end and every check held, 1 if not, 2 if it was asked
for something that does not exist.
"""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from . import demo as demonstration
from . import experiment, progress, report
from .errors import LabError
from .machine import MACHINES


class _Commands(click.Group):
    """Turns the lab's errors into one message and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LabError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Boot machines in QEMU and measure trapless in them."""


@main.command("list")
def list_experiments() -> None:
    """List the experiments."""
    table = Table("name", "reproduces", "minutes")
    for entry in experiment.registry().values():
        table.add_row(entry.name, entry.reproduces, str(entry.minutes))
    Console().print(table)


@main.command()
def machines() -> None:
    """List the machines."""
    table = Table("name", "what", "IOMMU", "CPUs", "MiB")
    for machine in MACHINES.values():
        table.add_row(
            machine.name,
            machine.description,
            machine.iommu or "-",
            str(machine.cpus),
            str(machine.memory_mib),
        )
    Console().print(table)


def _known(_ctx: click.Context, _param: click.Parameter, name: str) -> experiment.Experiment:
    known = experiment.registry()
    if name not in known:
        raise click.BadParameter(f"no experiment is called {name}; there are: {', '.join(known)}")
    return known[name]


@main.command()
@click.argument("chosen", metavar="NAME", callback=_known)
@click.option("--quick", is_flag=True, help="Fewer repetitions: the same checks, rougher numbers.")
@click.option(
    "--json", "json_path", metavar="FILE", type=click.Path(path_type=Path), help="Write the result."
)
@click.option(
    "--plots", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Draw into a directory."
)
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep the machines' logs."
)
def run(
    chosen: experiment.Experiment, quick: bool, json_path: Path | None, plots: Path | None, keep: Path | None
) -> None:
    """Run the experiment NAME."""
    if json_path is not None:
        report.require_writable(json_path)
    with progress.for_terminal() as shown:
        result = chosen.run(experiment.Context(quick=quick, progress=shown, plots=plots, keep=keep))
    if json_path is not None:
        report.write(json_path, report.as_json(chosen, result))
    report.show(Console(), chosen, result)
    if not result.holds:
        raise SystemExit(1)


@main.command()
@click.option(
    "--results",
    metavar="DIR",
    default="results",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where JSON and plots go.",
)
def demo(results: Path) -> None:
    """Run every experiment quickly and show what changes, accelerator by accelerator."""
    with progress.for_terminal() as shown:
        outcomes = demonstration.run(results, shown)
    if not demonstration.show(Console(), outcomes, results):
        raise SystemExit(1)
