#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Say which parts of the payload can be proven for anyone's Xen, which not and why. Changes nothing.

    trapless-payload probe IMAGE SYMS [--json FILE]

IMAGE is the file that boots: xen-*.gz, or xen-*.efi with its list of symbols, IMAGE.map, beside SYMS. SYMS is
the same build with its symbols, xen-syms. The text is for who runs that Xen. The JSON has more, to be sent
back: every verdict, the digests of the functions that two parts repeat, and the instructions of those in
which something was looked for and not found, so that proofs can be written for a build that nobody here has.
It has the names of both files, and nothing else of this host.

The exit status is 0 if a payload can be built, with all parts or some; 1 if none can; 2 if a file is
unusable.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check_layout import DEFAULT_LAYOUT
from find_zero_runs import find_all
from layout_checker import proofs
from layout_checker.efi import open_hypervisor
from layout_checker.facts import check_all
from layout_checker.fit import fit
from layout_checker.header import FAMILIES, Header, Version, families, parse_header, read_layout
from layout_checker.hypervisor import Hypervisor
from layout_checker.known_functions import OPTIONS, PARTS, left_out, lists, read_known
from layout_checker.report import Refused, UnusableInput
from zero_run_finder.finder import NAMES

FORMAT = 1
STANDARD = Path("-")
# Without these there is nothing to prove: the first loads payloads, the second has guests that gain by one.
NEEDED = {"CONFIG_LIVEPATCH": "livepatch_op", "CONFIG_PV": "do_mmu_update"}
INDENT = 12
REPEATERS = [part.name for part in PARTS]


@dataclass
class Findings:
    """What was found out about a build."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    build_id: str = ""
    version: str = ""
    debug_info: bool = False
    options: dict[str, bool] = field(default_factory=dict)
    fitted: list[str] = field(default_factory=list)
    items: dict[str, str | None] = field(default_factory=dict)
    loops: dict[str, str | None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    code: dict[str, list[str]] = field(default_factory=dict)
    # Why no payload can be built whatever else is proven.
    hopeless: list[str] = field(default_factory=list)

    @property
    def refused(self) -> dict[str, str]:
        """The items of the layout that do not hold."""
        return {item: why for item, why in self.items.items() if why is not None}

    @property
    def proven_loops(self) -> int:
        """How many loops may be patched."""
        return sum(why is None for why in self.loops.values())

    def parts(self) -> dict[str, list[str]]:
        """Each part of the payload, and what stands against it."""
        layout = [f"{item}: {why}" for item, why in self.refused.items()]
        loops = [] if self.proven_loops else [f"{name}: {why}" for name, why in self.loops.items()]
        return {
            "marks": layout,
            "zero_runs": loops,
            **{part.name: [self.left_out[part.name]] if part.name in self.left_out else [] for part in PARTS},
        }

    @property
    def builds(self) -> bool:
        """Whether a payload can be built: all of the layout holds, and at least one loop."""
        return not (self.hopeless or self.refused) and bool(self.proven_loops)


def look(image: Path, symbols: Path) -> Findings:
    """All findings about a build. UnusableInput if there is no build to look at."""
    hypervisor = open_build(image, symbols)
    found = Findings()
    found.files = {"image": described(image), "symbols": described(symbols)}
    found.build_id = hypervisor.image.build_id.hex()
    found.debug_info = bool(hypervisor.stated)
    found.options = {option: symbol in hypervisor.symbols for option, symbol in NEEDED.items()}
    found.options |= {
        option: any(name in hypervisor.symbols for name in names) for option, names in OPTIONS.items()
    }
    found.hopeless = [
        f"this Xen was built without {option}" for option in NEEDED if not found.options[option]
    ]
    try:
        version = hypervisor.version
    except Refused as refusal:
        found.hopeless.append(str(refusal))
    else:
        found.version = ".".join(map(str, version))
        judge_layout(found, hypervisor, layout_for(found, version))
    found.left_out = left_out(hypervisor, read_known())
    with contextlib.suppress(Refused):
        found.functions = lists(hypervisor)
    found.loops = dict(find_all(hypervisor)[1].verdicts)
    return found


def open_build(image: Path, symbols: Path) -> Hypervisor:
    """Image and symbols of one build."""
    try:
        hypervisor = open_hypervisor(image, symbols)
        hypervisor.demand_one_build()
    except Refused as refusal:
        raise UnusableInput(f"image and symbols are not of one build: {refusal}") from refusal
    return hypervisor


def described(path: Path) -> dict[str, Any]:
    """What identifies a file."""
    data = path.read_bytes()
    return {"name": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def layout_for(found: Findings, version: Version) -> str:
    """layout.h for this version; of an unknown one for the nearest, to show how much of it still holds."""
    try:
        return read_layout(DEFAULT_LAYOUT, version)
    except UnusableInput as error:
        known = families(DEFAULT_LAYOUT.parent / FAMILIES)
        nearest, _, path = known[0] if version < known[0][0] else known[-1]
        found.hopeless.append(f"{error}. It is judged as {path.stem} would be.")
        return read_layout(DEFAULT_LAYOUT, nearest)


def judge_layout(found: Findings, hypervisor: Hypervisor, text: str) -> None:
    """Every item of layout.h; of those that do not hold, the code in which they were looked for."""
    text, found.fitted = fit(text, parse_header(text), hypervisor)
    header = parse_header(text)
    found.items = dict(check_all(header, hypervisor).verdicts)
    for function in sorted({name for item in found.refused for name in looked_in(item, header)}):
        try:
            found.code[function] = hypervisor.text(function).splitlines()
        except Refused as refusal:
            found.code[function] = [f"; {refusal}"]


def looked_in(item: str, header: Header) -> Iterator[str]:
    """The functions of Xen in which an item is looked for."""
    witnesses: tuple[proofs.Proof, ...] = ()
    if item in proofs.VALUES:
        witnesses = proofs.VALUES[item]
    elif item in proofs.SYMBOLS:
        witnesses = proofs.SYMBOLS[item].witnesses
    elif item.startswith("assumption: "):
        witnesses = (*proofs.PDX.values(), *proofs.DEATH, proofs.FUNC_ENTRY)
    yield from (witness.function for witness in witnesses)
    if (name := item.removeprefix("XEN_PROLOGUE_")) in header.replaced:
        yield name


def as_text(found: Findings) -> Iterator[str]:
    """The report for who runs this Xen."""

    def line(name: str, text: str, more: Iterable[str] = ()) -> Iterator[str]:
        yield f"{name:{INDENT}}{text}"
        yield from (f"{'':{INDENT}}{each}" for each in more)

    for kind, file in found.files.items():
        yield from line(kind, f"{file['name']}, SHA-256 {file['sha256']}")
    yield from line("Xen", f"{found.version or 'of unknown version'}, build-id {found.build_id}")
    yield from line(
        "built with", ", ".join(name for name, on in found.options.items() if on) or "none of these"
    )
    yield from line("and without", ", ".join(name for name, on in found.options.items() if not on))
    yield ""
    parts = found.parts()
    held = f"{len(found.items) - len(found.refused)} of {len(found.items)} items of the layout hold"
    yield from line("marks", held, parts["marks"])
    loops = [f"{name}: {why}" for name, why in found.loops.items() if why is not None]
    yield from line("zero_runs", f"{found.proven_loops} of {len(NAMES)} loops are proven", loops)
    for part in REPEATERS:
        yield from line(part, "LEFT OUT" if parts[part] else "as in a build that is known", parts[part])
    yield ""
    yield from found.hopeless
    yield (
        "A payload can be built for this Xen, of what is proven."
        if found.builds
        else "No payload can be built for this Xen: it needs the marks and a loop; the rest may be missing."
    )
    yield "Not tried: this Xen itself. The differential test of page tables needs it in a machine."


def as_json(found: Findings) -> str:
    """All findings, for who writes the proofs."""
    everything = {
        "format": FORMAT,
        "files": found.files,
        "build_id": found.build_id,
        "version": found.version,
        "debug_info": found.debug_info,
        "options": found.options,
        "builds": found.builds,
        "hopeless": found.hopeless,
        "parts": found.parts(),
        "fitted": found.fitted,
        "items": found.items,
        "loops": found.loops,
        "functions": found.functions,
        "code": found.code,
    }
    return json.dumps(everything, indent=1) + "\n"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="trapless-payload probe", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("image", type=Path, help="the file that boots, xen-*.gz or xen-*.efi")
    parser.add_argument("symbols", type=Path, help="the same build with its symbols, xen-syms")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all findings, to be sent back; - is standard output"
    )
    return parser.parse_args(arguments)


def unwritable(target: Path) -> str:
    """Why findings could not be written there, before minutes of proving; empty if they could."""
    if target.is_dir():
        return f"{target} is a directory"
    if not target.parent.is_dir():
        return f"{target.parent} is not a directory"
    place = target if target.exists() else target.parent
    return "" if os.access(place, os.W_OK) else f"{place} is not writable"


def main(arguments: list[str] | None = None) -> int:
    """Look, print the report, then write the findings; return the exit status."""
    options = parse(arguments)
    is_standard = options.json == STANDARD
    if options.json and not is_standard and (why := unwritable(options.json)):
        print(f"probe: --json: {why}", file=sys.stderr)
        return 2
    try:
        found = look(options.image, options.symbols)
    except (UnusableInput, OSError) as error:
        print(f"probe: {error}", file=sys.stderr)
        return 2
    print("\n".join(as_text(found)), file=sys.stderr if is_standard else sys.stdout)
    try:
        if is_standard:
            sys.stdout.write(as_json(found))
            sys.stdout.flush()
        elif options.json:
            options.json.write_text(as_json(found), encoding="ascii")
    except OSError as error:
        print(f"probe: cannot write {options.json}: {error.strerror}", file=sys.stderr)
        return 2
    return 0 if found.builds else 1


if __name__ == "__main__":
    sys.exit(main())
