#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Find the loops over page-table entries in the installed hypervisor, and prove what zero_runs.S needs.

One line a loop: `ok` or `REFUSED loop: why`. The exit status is 0 if every one is proven, 1 if one is
refused, 2 if a file cannot be read. Nothing is written unless all are proven.

With --leave-out a loop that is not proven stays as stock Xen has it, and a line `LEFT OUT loop: why` says
so, here and in both files. At least one must be proven, or the payload would have a switch for nothing.

With --known a proof that was made before, of the very same image, is taken from a folder of BUILDID.h and
BUILDID.txt: an installed package has those of the builds it was tested with, as a proof takes a minute of a
processor with Debian 12's solver.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS
from layout_checker.efi import open_hypervisor
from layout_checker.facts import same_build, same_bytes
from layout_checker.hypervisor import Hypervisor
from layout_checker.report import Refused, Report, UnusableInput
from zero_run_finder.finder import NAMES, Site, find
from zero_run_finder.flow import Program
from zero_run_finder.output import header, image_line, report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--xen", type=Path, default=DEFAULT_IMAGE, help="the image that boots")
    parser.add_argument("--syms", type=Path, default=DEFAULT_SYMBOLS, help="Xen with its symbols")
    parser.add_argument("--emit", type=Path, metavar="FILE", help="write zero_run_sites.h, if all holds")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what was found, if all holds")
    parser.add_argument("--known", type=Path, metavar="FOLDER", help="take a proof of this image from here")
    parser.add_argument("--leave-out", action="store_true", help="leave out loops that are not proven")
    parser.add_argument("--quiet", action="store_true", help="print refusals and a summary only")
    return parser.parse_args(arguments)


def same_files(hypervisor: Hypervisor) -> None:
    """Image and symbols are of one build, and the code is the same in both."""
    same_build(hypervisor)
    for section in hypervisor.sections:
        if section.executable and section.name in hypervisor.compared:
            same_bytes(hypervisor, section.name)


def attempt(image: Path, symbols: Path, name: str) -> Site | str:
    """A proven loop, or why it is not."""
    try:
        return find(Program(open_hypervisor(image, symbols)), name)
    except Refused as refusal:
        return str(refusal)


def find_all(hypervisor: Hypervisor) -> tuple[list[Site], Report]:
    """Every loop that is proven, and the verdicts."""
    verdicts, sites = Report(), []
    try:
        same_files(hypervisor)
    except Refused as refusal:
        verdicts.refuse("image", str(refusal))
        return [], verdicts
    tasks = [(hypervisor.image.path, hypervisor.symbols_path, name) for name in NAMES]
    with ProcessPoolExecutor(min(len(NAMES), os.cpu_count() or 1)) as pool:
        outcomes = list(pool.map(attempt, *zip(*tasks, strict=True)))
    for name, outcome in zip(NAMES, outcomes, strict=True):
        if isinstance(outcome, Site):
            sites.append(outcome)
            verdicts.accept(name)
        else:
            verdicts.refuse(name, outcome)
    return sites, verdicts


def known(folder: Path, hypervisor: Hypervisor) -> tuple[str, str] | None:
    """Both files of an earlier proof of this very image."""
    stem = hypervisor.image.build_id.hex()
    try:
        found, listing = ((folder / f"{stem}{end}").read_text(encoding="ascii") for end in (".h", ".txt"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableInput(f"{folder}/{stem}: {error}") from error
    return (found, listing) if image_line(hypervisor) in found.splitlines() else None


def main(arguments: list[str] | None = None) -> int:
    """Find, print the verdicts, write the header, return the exit status."""
    options = parse(arguments)
    try:
        hypervisor = open_hypervisor(options.xen, options.syms)
        if options.known and (proof := known(options.known, hypervisor)):
            found, listing = proof
            for line in listing.splitlines():
                if line.startswith("LEFT OUT"):
                    print(line)
            count = found.count("\tzero_run ")
            print(
                f"{count} of {len(NAMES)} loops are proven for Xen {hypervisor.image.build_id.hex()}, before"
            )
            _write(options, found, listing)
            return 0
        sites, verdicts = find_all(hypervisor)
    except UnusableInput as error:
        print(f"find_zero_runs: {error}", file=sys.stderr)
        return 2
    leave_out = options.leave_out and bool(sites)
    left_out = {name: why for name, why in verdicts.verdicts if why is not None} if leave_out else {}
    for line in verdicts.lines():
        if not options.quiet or line.startswith("REFUSED"):
            print(line.replace("REFUSED", "LEFT OUT", 1) if left_out else line)
    build_id = hypervisor.image.build_id.hex()
    print(f"{len(sites)} of {len(NAMES)} loops are proven for Xen {build_id}")
    if verdicts.refused and not left_out:
        print(f"find_zero_runs: refused: {', '.join(verdicts.refused)}", file=sys.stderr)
        return 1
    _write(
        options, header(sites, hypervisor, left_out), "\n".join(report(sites, hypervisor, left_out)) + "\n"
    )
    return 0


def _write(options: argparse.Namespace, sites: str, listing: str) -> None:
    if options.report:
        options.report.write_text(listing)
    if options.emit:
        options.emit.write_text(sites)


if __name__ == "__main__":
    sys.exit(main())
