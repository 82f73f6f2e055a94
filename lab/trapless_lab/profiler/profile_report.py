# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A profile as tables and as JSON.

Invariant: figures per repetition are the totals divided, not separate counts; the JSON has the totals, too.
"""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiment import report
from . import groups
from .attribution import Profile
from .profile import Request


def _figure(number: int, per: int | None) -> int | float:
    return number if per is None else round(number / per, 2)


def as_json(request: Request, profile: Profile, per: int | None, versions: dict[str, str]) -> dict[str, Any]:
    """Return the object that ``--json`` writes."""
    return {
        "profile": list(request.workload),
        "unit": "instructions" if per is None else "instructions a repetition",
        "method": "executed instructions, counted by a QEMU plugin under -icount between two markers",
        "machine": {**versions, "name": request.machine.name, "boosted": request.boosted},
        "xen_args": list(request.machine.xen_args),
        "total": profile.total,
        "per": per,
        "spaces": {space: _figure(number, per) for space, number in profile.spaces.items()},
        "groups": [
            {"space": space, "group": name, "instructions": _figure(number, per)}
            for space, name, number in _grouped(profile)
        ],
        "symbols": [
            {
                "space": symbol.space,
                "symbol": symbol.name,
                "instructions": _figure(symbol.instructions, per),
                "entries": _figure(symbol.entries, per),
            }
            for symbol in profile.symbols
        ],
        "hypercalls": {
            name: {how: _figure(number, per) for how, number in counted.items()}
            for name, counted in _hypercalls(profile)
        },
        "events": {event: _figure(number, per) for event, number in profile.events.items()},
        "checks": [{"name": c.name, "holds": c.holds, "text": c.text} for c in profile.checks],
    }


def _grouped(profile: Profile) -> list[tuple[groups.Space, str, int]]:
    return [
        (space, name, profile.groups[space, name])
        for space in groups.SPACES
        for name in groups.names(space)
        if profile.groups.get((space, name))
    ]


def _hypercalls(profile: Profile) -> list[tuple[str, dict[str, int]]]:
    found = [(name, dict(counted)) for name, counted in profile.hypercalls.items()]
    return sorted(found, key=lambda entry: (-sum(entry[1].values()), entry[0]))


def show(console: Console, request: Request, profile: Profile, per: int | None, top: int) -> None:
    """Print a profile for a person."""
    unit = "instructions"
    boosted = ", boosted" if request.boosted else ""
    title = f"{request.machine.name}{boosted}: {' '.join(request.workload)}"
    if per is not None:
        title += f" (each of {per:,} repetitions)"

    def cells(number: int) -> tuple[str, str]:
        figure = f"{number:,}" if per is None else f"{number / per:,.0f}"
        return figure, f"{100 * number / profile.total:.1f}" if profile.total else "-"

    by_group = Table("", unit, "%", title=escape(title), title_justify="left")
    for space, number in profile.spaces.items():
        if number:
            by_group.add_row(space, *cells(number), style="bold")
            for where, name, part in _grouped(profile):
                if where == space and name != groups.REST["user"]:
                    by_group.add_row(f"  {name}", *cells(part))
    by_group.add_row("total", *cells(profile.total), style="bold")

    by_symbol = Table(
        "", "symbol", unit, "%", "entries", title=f"The first {top} symbols", title_justify="left"
    )
    for symbol in profile.symbols[:top]:
        entries = _rate(symbol.entries, per)
        by_symbol.add_row(symbol.space, escape(symbol.name), *cells(symbol.instructions), entries)
    tables = [by_group, by_symbol]

    if profile.hypercalls:
        calls = Table("hypercall", "direct", "in multicalls")
        for name, counted in _hypercalls(profile):
            calls.add_row(name, *(_rate(counted.get(how, 0), per) for how in ("direct", "multicall")))
        tables.append(calls)
    if profile.events:
        events = Table("event", "times")
        for event, number in profile.events.items():
            events.add_row(event, _rate(number, per))
        tables.append(events)
    for table in tables:
        table.title_justify = "left"
        for column in table.columns[1:]:
            if column.header == "symbol":
                column.overflow = "fold"
            else:
                column.justify = "right"
        console.print(table)
    report.show_checks(console, profile.checks)


def _rate(number: int, per: int | None) -> str:
    return f"{number:,}" if per is None else f"{number / per:,.2f}"
