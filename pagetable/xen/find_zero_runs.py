#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Find the loops over page-table entries in the installed hypervisor, and prove what zero_runs.S needs.

One line a loop: `ok` or `REFUSED loop: why`. The exit status is 0 if every one is proven, 1 if one is
refused, 2 if a file cannot be read. Nothing is written unless all are proven.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS
from layout_checker.facts import same_build, same_bytes
from layout_checker.hypervisor import Hypervisor
from layout_checker.report import Refused, Report, UnusableInput
from zero_run_finder.finder import NAMES, Site, find
from zero_run_finder.flow import Program
from zero_run_finder.output import header, report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--xen", type=Path, default=DEFAULT_IMAGE, help="the image that boots")
    parser.add_argument("--syms", type=Path, default=DEFAULT_SYMBOLS, help="Xen with its symbols")
    parser.add_argument("--emit", type=Path, metavar="FILE", help="write zero_run_sites.h, if all holds")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what was found, if all holds")
    parser.add_argument("--quiet", action="store_true", help="print refusals and a summary only")
    return parser.parse_args(arguments)


def same_files(hypervisor: Hypervisor) -> None:
    """Image and symbols are of one build, and the code is the same in both."""
    same_build(hypervisor)
    for section in hypervisor.sections:
        if section.executable:
            same_bytes(hypervisor, section.name)


def attempt(image: Path, symbols: Path, name: str) -> Site | str:
    """A proven loop, or why it is not."""
    try:
        return find(Program(Hypervisor(image, symbols)), name)
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


def main(arguments: list[str] | None = None) -> int:
    """Find, print the verdicts, write the header, return the exit status."""
    options = parse(arguments)
    try:
        hypervisor = Hypervisor(options.xen, options.syms)
        sites, verdicts = find_all(hypervisor)
    except UnusableInput as error:
        print(f"find_zero_runs: {error}", file=sys.stderr)
        return 2
    for line in verdicts.lines():
        if not options.quiet or line.startswith("REFUSED"):
            print(line)
    build_id = hypervisor.image.build_id.hex()
    print(f"{len(sites)} of {len(NAMES)} loops are proven for Xen {build_id}")
    if verdicts.refused:
        print(f"find_zero_runs: refused: {', '.join(verdicts.refused)}", file=sys.stderr)
        return 1
    if options.report:
        options.report.write_text("\n".join(report(sites, hypervisor)) + "\n")
    if options.emit:
        options.emit.write_text(header(sites, build_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
