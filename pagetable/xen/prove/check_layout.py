#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prove that layout.h describes the installed hypervisor, and that a payload fits it.

One line an item: `ok` or `REFUSED item: why`. With --fit the items that move with every rebuild of Xen are
read from the code first (layout_checker/fit.py), `FITTED` names each that differs from layout.h, and what
is written is proven like layout.h itself. `LEFT OUT part: why` names a part of the payload that must not be
built for this hypervisor (layout_checker/known_functions.py); the others may. The exit status is 0 if every
item holds, 1 if one is refused, 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from layout_checker.efi import open_hypervisor
from layout_checker.facts import check_all
from layout_checker.fit import fit
from layout_checker.header import parse_header, read_layout
from layout_checker.known_functions import left_out, lists, parts_header, read_known
from layout_checker.loops import read_loops
from layout_checker.payload import check_payload
from layout_checker.report import Refused, Report, UnusableInput

# The newest that is installed.
DEFAULT_IMAGE = max(
    Path("/boot").glob("xen-*-amd64.gz"),
    key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)],
    default=Path("/boot/xen-VERSION-amd64.gz"),
)
DEFAULT_SYMBOLS = Path("/usr/lib/debug/boot") / DEFAULT_IMAGE.stem.replace("xen-", "xen-syms-", 1)
DEFAULT_LAYOUT = Path(__file__).resolve().parents[1] / "layout.h"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--xen", type=Path, default=DEFAULT_IMAGE, help="the image that boots")
    parser.add_argument("--syms", type=Path, default=DEFAULT_SYMBOLS, help="Xen with its symbols")
    parser.add_argument(
        "--layout",
        type=Path,
        default=DEFAULT_LAYOUT,
        help="layout.h, with families/ beside it, or a fitted one",
    )
    parser.add_argument("--fit", type=Path, metavar="FILE", help="write the header fitted to this build")
    parser.add_argument("--payload", type=Path, help="a built payload to check as well")
    parser.add_argument(
        "--payload-only",
        action="store_true",
        help="not the layout: it is one that --fit wrote, with --emit-build-id FILE beside it",
    )
    parser.add_argument("--loops", type=Path, help="the payload's zero_run_sites.h")
    parser.add_argument("--emit-build-id", type=Path, metavar="FILE", help="write the build-id, if all holds")
    parser.add_argument(
        "--emit-parts", type=Path, metavar="DIR", help="write parts.h and left-out, if all holds"
    )
    parser.add_argument("--functions", action="store_true", help="print this build's list of known functions")
    parser.add_argument("--build-id", action="store_true", help="print the image's build-id, check nothing")
    parser.add_argument("--quiet", action="store_true", help="print refusals and a summary only")
    return parser.parse_args(arguments)


def require_proven(layout: Path, build_id: bytes) -> None:
    """Refuse a layout that was not proven for this image: its build-id is written after every item held."""
    beside = layout.with_name("build-id")
    try:
        proven = beside.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UnusableInput(f"{layout} is not proven: {beside}: {error}") from error
    if proven != build_id.hex():
        raise UnusableInput(f"{layout} was proven for Xen {proven[:64]}, not for {build_id.hex()}")


def main(arguments: list[str] | None = None) -> int:
    """Check, print the report, return the exit status."""
    options = parse(arguments)
    try:
        hypervisor = open_hypervisor(options.xen, options.syms)
        if options.build_id:
            print(hypervisor.image.build_id.hex())
            return 0
        if options.functions:
            print("\n".join(lists(hypervisor)))
            return 0
        text = read_layout(options.layout, hypervisor.version)
        header = parse_header(text)
        if options.fit:
            text, changes = fit(text, header, hypervisor)
            header = parse_header(text)
            for change in changes:
                print(f"FITTED  {change}")
        if options.payload_only:
            require_proven(options.layout, hypervisor.image.build_id)
        report = Report() if options.payload_only else check_all(header, hypervisor)
        missing = left_out(hypervisor, read_known())
        if options.payload:
            loops = read_loops(options.loops) if options.loops else []
            check_payload(report, options.payload, header, hypervisor, loops, missing)
    except (UnusableInput, Refused) as error:
        print(f"check_layout: {error}", file=sys.stderr)
        return 2
    for line in report.lines():
        if not options.quiet or line.startswith("REFUSED"):
            print(line)
    for part, why in missing.items():
        print(f"LEFT OUT {part}: {why}")
    print(
        f"{len(report.verdicts) - len(report.refused)} of {len(report.verdicts)} items hold "
        f"for Xen {hypervisor.image.build_id.hex()}"
    )
    if report.refused:
        print(f"check_layout: refused: {', '.join(report.refused)}", file=sys.stderr)
        return 1
    if options.fit:
        options.fit.write_text(text, encoding="ascii")
    if options.emit_parts:
        (options.emit_parts / "parts.h").write_text(parts_header(missing))
        (options.emit_parts / "left-out").write_text("".join(f"{p}: {why}\n" for p, why in missing.items()))
    if options.emit_build_id:
        options.emit_build_id.write_text(hypervisor.image.build_id.hex() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
