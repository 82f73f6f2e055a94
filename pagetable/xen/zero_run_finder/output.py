# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Proven loops as zero_run_sites.h, and as text for whoever wants to check them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
)


def header(sites: Sequence[Site], build_id: str) -> str:
    """The arguments of zero_runs.S."""
    lines = [
        "/* SPDX-License-Identifier: GPL-2.0-only */",
        f"/* Written by find_zero_runs.py for Xen {build_id}; see zero_runs.S. */",
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


def report(sites: Sequence[Site], hypervisor: Hypervisor) -> Iterator[str]:
    """What was found and what holds, line by line."""
    yield f"Xen {hypervisor.build_id.hex()}: the loops over page-table entries"
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
