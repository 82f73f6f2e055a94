#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Run a payload's trampolines, in an emulated processor, beside the loops that they stand in for.

One line a loop: `ok`, or `REFUSED loop: the first difference`. The exit status is 0 if nothing differs in
any case, 1 if something does, 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from check_layout import DEFAULT_IMAGE, DEFAULT_LAYOUT, DEFAULT_SYMBOLS
from layout_checker.efi import open_hypervisor
from layout_checker.header import parse_header, read_layout
from layout_checker.loops import read_loops
from layout_checker.report import Refused, Report, UnusableInput
from zero_run_finder.emulation import compare
from zero_run_finder.trampolines import Trampolines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--xen", type=Path, default=DEFAULT_IMAGE, help="the image that boots")
    parser.add_argument("--syms", type=Path, default=DEFAULT_SYMBOLS, help="Xen with its symbols")
    parser.add_argument("--layout", type=Path, default=DEFAULT_LAYOUT, help="layout.h, proven for them")
    parser.add_argument("--payload", type=Path, required=True, help="what has the trampolines")
    parser.add_argument("--loops", type=Path, required=True, help="the payload's zero_run_sites.h")
    parser.add_argument("--cases", type=int, default=30, help="how many tables for each loop")
    parser.add_argument("--seed", type=int, default=1, help="which tables")
    parser.add_argument("--quiet", action="store_true", help="print refusals and a summary only")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run all, print the verdicts, return the exit status."""
    options = parse(arguments)
    verdicts = Report()
    try:
        hypervisor = open_hypervisor(options.xen, options.syms)
        loops = read_loops(options.loops)
        layout = parse_header(read_layout(options.layout, hypervisor.version))
        trampolines = Trampolines(hypervisor, options.payload, loops)
        for loop in loops:
            try:
                compare(hypervisor, layout, trampolines, loop, options.cases, options.seed)
            except Refused as refusal:
                verdicts.refuse(loop.name, str(refusal))
            else:
                verdicts.accept(loop.name)
    except (UnusableInput, Refused) as error:
        print(f"run_zero_runs: {error}", file=sys.stderr)
        return 2
    for line in verdicts.lines():
        if not options.quiet or line.startswith("REFUSED"):
            print(line)
    same = len(loops) - len(verdicts.refused)
    print(f"{same} of {len(loops)} loops: no difference in {options.cases} tables each")
    if verdicts.refused:
        print(f"run_zero_runs: refused: {', '.join(verdicts.refused)}", file=sys.stderr)
    return bool(verdicts.refused)


if __name__ == "__main__":
    sys.exit(main())
