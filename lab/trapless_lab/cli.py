# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command line.

Invariant: the exit code is 0 only if the command ran to its end and every check held, 1 if not, 2 if an
argument is wrong. With 1 and "not passed" verify-payload has judged the payload, with 3 it has not.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, Self

import click
from rich.table import Table

from . import __version__, artifacts, catalogue, commands, host, output, overall, progress
from . import demo as demonstration
from .errors import LabError
from .experiment import experiment, report
from .experiment.claim import Part
from .experiment.plots import Album
from .machines import pair
from .machines.machine import MACHINES, Machine
from .machines.pair import PAIRS
from .output import Terminal
from .pagetable import parts as pagetable
from .pagetable import verify_payload
from .papers import PAPERS, documented, kept, making, measured, moved, page, sources
from .profiler import flame, profile, profile_report

P = ParamSpec("P")


class _NothingKnown(click.ClickException):
    """Nothing was judged."""

    exit_code = 3


@click.group(cls=commands.Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="trapless-lab")
def main() -> None:
    """Boot machines in QEMU and measure trapless in them."""


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def list_experiments(as_json: bool) -> None:
    """List the experiments."""
    if as_json:
        click.echo(json.dumps(report.listed(catalogue.experiments().values()), indent=2))
        return
    table = Table("name", "reproduces", "minutes")
    for entry in catalogue.experiments().values():
        table.add_row(entry.name, entry.reproduces, str(entry.minutes))
    Terminal().print(table)


@main.command()
def machines() -> None:
    """List the machines."""
    table = Table("name", "what", "CPU", "emulator", "IOMMU", "CPUs", "MiB")
    for machine in MACHINES.values():
        table.add_row(
            machine.name,
            machine.description,
            machine.architecture,
            machine.emulator,
            machine.iommu or "-",
            str(machine.cpus),
            str(machine.memory_mib),
        )
    Terminal().print(table)


def _require_writable(files: Sequence[Path | None], folders: Sequence[Path | None]) -> None:
    """Refuse a path that cannot be written, before a machine runs."""
    if sum(map(output.is_standard, files)) > 1:
        raise click.UsageError("only one result can go to standard output")
    for folder in folders:
        if output.is_standard(folder):
            raise click.UsageError(f"{folder} is standard output, where a directory is wanted")
        if folder is not None:
            output.require_folder(folder)
    seen: set[Path] = set()
    for file in files:
        if file is None or output.is_standard(file):
            continue
        output.require_writable(file)
        place = file.resolve()
        if place in seen and (place.is_file() or not place.exists()):
            raise click.UsageError(f"two results cannot go to one file, {file}")
        seen.add(place)


def _console(*files: Path | None) -> Terminal:
    """Return the console for a person: standard output, unless a result goes there."""
    return Terminal(stderr=any(map(output.is_standard, files)))


class _Saving:
    """Shows and writes each result of a run, also if another could not be; then says which could not."""

    def __init__(self) -> None:
        self._failed: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __call__(self, write: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        try:
            with commands.standard_output():
                write(*arguments, **named)
        except LabError as error:
            self._failed.append(str(error))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._failed:
            return
        if kind is None:
            raise LabError("; ".join(self._failed))
        click.echo("\n".join(self._failed), err=True)


def _known(_ctx: click.Context, _param: click.Parameter, name: str) -> experiment.Experiment:
    known = catalogue.experiments()
    if name not in known:
        raise click.BadParameter(f"no experiment is called {name}; there are: {', '.join(known)}")
    return known[name]


@main.command()
@click.argument("chosen", metavar="NAME", callback=_known)
@click.option(
    "--quick", is_flag=True, help="Fewer repetitions and variants: the same checks, rougher numbers."
)
@click.option(
    "--json", "json_path", metavar="FILE", type=click.Path(path_type=Path), help="Write the result."
)
@click.option(
    "--plots", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Draw into a directory."
)
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep the machines' logs."
)
@click.option(
    "--resume",
    is_flag=True,
    help="Do not run again a machine that ran to its end and is in --keep's directory.",
)
@click.option(
    "--pair",
    "pair_name",
    type=click.Choice(list(PAIRS)),
    default=pair.DEFAULT.name,
    show_default=True,
    help="The Xen and the Linux that it runs on.",
)
def run(
    chosen: experiment.Experiment,
    quick: bool,
    json_path: Path | None,
    plots: Path | None,
    keep: Path | None,
    resume: bool,
    pair_name: str,
) -> None:
    """Run the experiment NAME."""
    if resume and keep is None:
        raise click.UsageError("--resume needs --keep, the directory of the run that is resumed")
    if pair_name not in chosen.pairs:
        raise click.UsageError(f"--pair: {chosen.name} runs on {', '.join(chosen.pairs)} only")
    _require_writable((json_path,), (plots, keep))
    album = Album() if plots else None
    with progress.for_terminal() as shown:
        context = experiment.Context(
            quick=quick, progress=shown, plots=album, keep=keep, resume=resume, pair=PAIRS[pair_name]
        )
        result = chosen.run(context)
    console = _console(json_path)
    with _Saving() as saving:
        saving(report.show, console, chosen, result)
        if json_path is not None:
            saving(report.write, json_path, report.as_json(chosen, result))
        if album is not None and plots is not None:
            saving(album.save, plots)
            for name, why in album.left_out.items():
                click.echo(f"no plot {name}: {why}", err=True)
    if not result.holds:
        raise SystemExit(1)


def _profilable(_ctx: click.Context, _param: click.Parameter, name: str) -> Machine:
    known: Mapping[str, Machine] = {m.name: m for m in MACHINES.values() if m.pc and m.cpus == 1}
    if name not in known:
        what = "has more than one CPU, or is not QEMU's PC" if name in MACHINES else "is not a machine"
        raise click.BadParameter(f"{name} {what}; there are: {', '.join(known)}")
    return known[name]


@main.command("profile")
@click.argument("machine", metavar="MACHINE", callback=_profilable)
@click.argument("workload", metavar="-- WORKLOAD...", nargs=-1, required=True)
@click.option("--boosted", is_flag=True, help="Load all of trapless first.")
@click.option("--xen-arg", "xen_args", metavar="ARG", multiple=True, help="Add to Xen's command line.")
@click.option("--per", metavar="N", type=click.IntRange(1), help="Show figures divided by N repetitions.")
@click.option(
    "--top", metavar="N", type=click.IntRange(1), default=40, show_default=True, help="Symbols shown."
)
@click.option(
    "--json", "json_path", metavar="FILE", type=click.Path(path_type=Path), help="Write all figures."
)
@click.option(
    "--flame", "flame_path", metavar="FILE.svg", type=click.Path(path_type=Path), help="Draw a flame graph."
)
@click.option(
    "--folded", "folded_path", metavar="FILE", type=click.Path(path_type=Path), help="Write folded stacks."
)
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep the machine's logs."
)
def profile_workload(
    machine: Machine,
    workload: tuple[str, ...],
    boosted: bool,
    xen_args: tuple[str, ...],
    per: int | None,
    top: int,
    json_path: Path | None,
    flame_path: Path | None,
    folded_path: Path | None,
    keep: Path | None,
) -> None:
    """Count the instructions of WORKLOAD, a command in MACHINE, by symbol.

    Example: trapless-lab profile --per 100 xen-strict -- spawn fork-exit -n 100
    """
    if xen_args and not machine.xen:
        raise click.UsageError(f"--xen-arg: {machine.name} runs no Xen")
    if boosted and (not machine.xen or machine.dom0 != "pv"):
        raise click.UsageError(f"--boosted: {machine.name} has no PV page tables")
    files = (json_path, flame_path, folded_path)
    _require_writable(files, (keep,))
    if flame_path is not None:
        flame.program()  # fails before the run if it is missing
    loaded = pagetable.everything(machine) if boosted else ()
    request = profile.Request(
        replace(machine, xen_args=(*machine.xen_args, *xen_args)),
        workload,
        pagetable.load_steps(loaded),
        pagetable.files(loaded),
    )
    with progress.for_terminal() as shown:
        found = profile.take(request, shown, keep)
    with _Saving() as saving:
        saving(profile_report.show, _console(*files), request, found, per, top)
        if json_path is not None:
            saving(report.write, json_path, profile_report.as_json(request, found, per, host.versions()))
        if folded_path is not None:
            saving(output.write_or_rescue, folded_path, "".join(flame.folded(found)).encode())
        if flame_path is not None:
            saving(flame.write, flame_path, found, f"{machine.name}: {' '.join(workload)}")
    if not found.holds:
        raise SystemExit(1)


_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@main.command("verify-payload")
@click.argument("image", metavar="IMAGE", type=_FILE)
@click.argument("payload", metavar="PAYLOAD", type=_FILE)
@click.option(
    "--packages",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=host.ROOT,
    help="The unpacked packages of this Xen, if its toolstack is not installed.",
)
@click.option(
    "--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="First seed."
)
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep the machine's logs."
)
def verify_in_machine(image: Path, payload: Path, packages: Path, seed: int, keep: Path | None) -> None:
    """Boot IMAGE, a Xen, and compare it with itself under PAYLOAD, which was built for it.

    In the machine runs what an operator runs on a host: trapless pagetable verify. Exit code 0 if the payload
    passed, 1 if not, 3 if nothing is known of it: something is missing, or the test did not come to an end
    for a reason that lies outside the machine.
    """
    _require_writable((), (keep,))
    try:
        with progress.for_terminal() as shown:
            verdict = verify_payload.take(
                image, payload, packages=packages, seed=seed, progress=shown, keep=keep
            )
    except verify_payload.NothingKnownError as error:
        raise _NothingKnown(f"nothing was judged: {error}") from error
    for line in verdict.wrong:
        click.echo(f"WRONG: {line}")
    if verdict.wrong:
        click.echo(f"not passed: {payload}")
        raise SystemExit(1)
    click.echo(f"passed: {verdict.summary}")


def _parts(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> list[Part]:
    known = catalogue.parts()
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"there is no system {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in known if name in (names or known)]


@main.command()
@click.argument("parts", metavar="[SYSTEM]...", nargs=-1, callback=_parts)
@click.option("--logs", is_flag=True, help="Show the ends of a failed machine's logs.")
def demo(parts: list[Part], logs: bool) -> None:
    """Show in some minutes what trapless is for, before and after: all systems, or those named."""
    with overall.for_terminal(demonstration.MACHINES_AT_A_TIME) as shown:
        outcomes = demonstration.run(parts, shown)
    if not demonstration.show(Terminal(), outcomes, logs=logs):
        raise SystemExit(1)


@main.command("report")
@click.option(
    "--quick", is_flag=True, help="Fewer repetitions and variants: the same checks, rougher numbers."
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(sorted({paper.system for paper in PAPERS})),
    help="The papers of one system; may be repeated.",
)
@click.option(
    "--from",
    "given",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Run nothing: draw the results that a report kept here. Stale ones are called so.",
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Write report.html, report.md, its figures and the results here.",
)
@click.option(
    "--tables",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also put the figures of full runs into the tables of this document.",
)
@click.option(
    "-j",
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Experiments at a time.  [default: as many as processors]",
)
def make_report(
    quick: bool, only: tuple[str, ...], given: Path | None, target: Path, tables: Path | None, jobs: int
) -> None:
    """Make one page of every table and figure of the papers, theirs beside ours.

    Each result is kept in results/report/full, or quick; the same command goes on where it was stopped, and
    makes anew what failed or was made by other sources. The last lines say which targets moved since the page
    it replaces.
    """
    root = artifacts.repository()
    papers = [paper for paper in PAPERS if not only or paper.system in only]
    names = page.experiments(papers)
    folder = given or root / "results" / "report" / ("quick" if quick else "full")
    found = kept.load(folder, names) if given else {}
    if given and not found:  # before anything is made
        raise click.ClickException(f"{given} has no result of these experiments; the page stays as it is")
    _require_writable(
        (tables, target / page.HTML, target / page.MARKDOWN),
        (target / page.RESULTS, *([] if given else [folder])),
    )
    if tables:
        measured.rewrite(_text(tables), {})  # fails before the run if a table or a row is unknown
    rows = documented.rows((root / "docs" / "papers.md").read_text())
    known = catalogue.experiments()
    left_out = [name for name in names if quick and not known[name].in_quick_report]
    now = sources.version(root, [known[name] for name in names])
    replaced = kept.load(target / page.RESULTS, names)
    if not given:
        with output.alone(folder, "another report keeps its results there"):
            found = kept.load(folder, names)
            wanted = [
                known[name]
                for name in names
                if name not in left_out and (name not in found or not found[name].usable(now, quick=quick))
            ]
            with overall.for_terminal(jobs) as shown:
                found |= making.make(wanted, found, making.Order(folder, now, quick), shown, jobs)
    found = {name: one for name, one in found.items() if name not in left_out}
    made = page.build(papers, rows, found, now, quick=quick, left_out=left_out)
    with _Saving() as saving:
        saving(_show_page, made, target, moved.since(replaced, found))
        saving(page.write, made, target)
        for one in found.values():
            saving(kept.save, target / page.RESULTS, one, packed=True)
        if not given:  # which may be that very folder
            for name in left_out:
                kept.place(target / page.RESULTS, name, packed=True).unlink(missing_ok=True)
        if tables:
            saving(output.write, tables, measured.rewrite(_text(tables), found).encode())
    if not made.good:
        raise SystemExit(1)


def _show_page(made: page.Page, target: Path, moved_since: Sequence[str]) -> None:
    console = Terminal(soft_wrap=True, highlight=False)
    for line in moved_since:
        console.print(f"since the results in {target}: {line}", markup=False)
    for heading, lines in made.lists:
        for line in lines:
            console.print(f"{heading}: {line}", markup=False)
    console.print(f"{target / page.HTML}: {made.sentence}", markup=False)


def _text(document: Path) -> str:
    try:
        return document.read_text()
    except UnicodeDecodeError as error:
        raise LabError(f"{document} is no text in UTF-8: {error}") from error
