# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Proven loops as zero_run_sites.h, and as text for checking by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from layout_checker.hypervisor import Hypervisor

from .finder import ENTRIES, Site

CLAIMS = (
    "one head, passed in every round; what the jump overwrites can move, and nothing jumps into it",
    "one entry a round, 8 bytes further each time",
    "index and address agree on entering it and after every round",
    "a zero entry that is not the table's last leads back to the head, or to a preemption",
    "it writes nothing but the zero back, and stack that nothing reads",
    "all registers that are read stay, but for those named",
    "flags and scratch are read by nothing",
    "on the lowest level: any round leaves what is read as it was, but for index and address",
)


# Loop to the reason why it is not proven, of those that stay stock Xen's.
LeftOut = Mapping[str, str]
NONE: LeftOut = MappingProxyType({})


def image_line(hypervisor: Hypervisor) -> str:
    """What ties the arguments to the very file they were proven in."""
    return f"/* In the image with SHA-256 {hashlib.sha256(hypervisor.image.flat).hexdigest()}. */"


def header(sites: Sequence[Site], hypervisor: Hypervisor, left_out: LeftOut = NONE) -> str:
    """The arguments of zero_runs.S."""
    lines = [
        "/* SPDX-License-Identifier: GPL-2.0-only */",
        f"/* Written by find_zero_runs.py for Xen {hypervisor.image.build_id.hex()}; see zero_runs.S. */",
        image_line(hypervisor),
        *(f"/* Left out: {name}: {why} */" for name, why in left_out.items()),
    ]
    for site in sites:
        arguments = {
            "name": site.loop.name,
            "function": f'"{site.loop.function}"',
            "offset": f"{site.loop.offset:#x}",
            "size": str(len(site.loop.code)),
            "bytes": '"' + ",".join(f"{byte:#04x}" for byte in site.loop.code) + '"',
            "entry": f'"{site.entry}"',
            "step": str(site.step),
            "index": register(site.index),
            "pointer": register(site.pointer),
            "key": register(site.key),
            "unit": str(site.unit),
            "clear": register(site.clear),
            "group": str(site.group),
            "scratch": register(site.scratch),
        }
        given = (f"{name}={value}" for name, value in arguments.items() if value)
        lines.append("\tzero_run " + ", ".join(given))
    return "\n".join(lines) + "\n"


def register(name: str) -> str:
    """A register in the assembler's syntax."""
    return f"%{name}" if name else ""


def report(sites: Sequence[Site], hypervisor: Hypervisor, left_out: LeftOut = NONE) -> Iterator[str]:
    """What was found and what holds, line by line."""
    yield f"Xen {hypervisor.build_id.hex()}: the loops over page-table entries"
    for name, why in left_out.items():
        yield f"LEFT OUT {name}, which stays as stock Xen has it: {why}"
    yield "Proven for each:"
    yield from (f"  {number}. {claim}" for number, claim in enumerate(CLAIMS, 1))
    for site in sites:
        yield ""
        yield f"{site.loop.name}: {site.loop.function}+{site.loop.offset:#x}, at {site.head:#x}"
        for instruction in hypervisor.disassemble(site.head, len(site.loop.code)):
            yield f"  overwritten      {instruction.text}"
        yield f"  entry            {site.entry}, {'upwards' if site.step > 0 else 'downwards'}"
        if site.index:
            yield f"  counts entries   {site.index}"
        if site.pointer:
            yield f"  points to it     {site.pointer}"
        yield f"  slot             {site.key} / {site.unit}, modulo {ENTRIES}"
        yield f"  left 0           {site.clear or 'none'}"
        looks = "looks for preemption" if site.group < ENTRIES else "does not look for preemption"
        yield f"  group            {site.group}: a round {looks}"
        yield f"  read by nothing  {', '.join(site.dead)}; the first is scratch"
        for note in site.notes:
            yield f"  note             {note}"
