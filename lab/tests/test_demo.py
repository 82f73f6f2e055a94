# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demonstration: its table, its progress, and a part that fails."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from io import StringIO
from itertools import pairwise

import pytest
from click.testing import CliRunner
from rich.console import Console

from trapless_lab import catalogue, cli, demo
from trapless_lab.errors import LabError
from trapless_lab.experiment.claim import Claim, Facts, Heading, Line, Part
from trapless_lab.experiment.experiment import Context
from trapless_lab.overall import Overall, PlainOverall


def fruit(name: str, *takes: Callable[[Context], Facts]) -> Part:
    return Part(
        name,
        Heading(f"{name} trees", "old", "new", "wild"),
        [Claim(f"{name} {at}", 10, take) for at, take in enumerate(takes)],
        lambda facts: [Line(f"{name} a tree", facts["before"], facts["after"], 7)],
        lambda facts: f"{name} cost {facts['after']:.0f}",
        lambda facts: f"no {name} was lost",
    )


def gives(**facts: float) -> Callable[[Context], Facts]:
    return lambda _context: facts


def fails(_context: Context) -> Facts:
    raise LabError("no tree grows here\n  the last lines of a long log")


def invoke(monkeypatch: pytest.MonkeyPatch, parts: list[Part], *arguments: str) -> tuple[int, str]:
    known: Mapping[str, Part] = {part.name: part for part in parts}
    monkeypatch.setattr(catalogue, "parts", lambda: known)
    ran = CliRunner().invoke(cli.main, ["demo", *arguments])
    return ran.exit_code, ran.output


def test_one_table_and_two_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [fruit("apples", gives(before=1200), gives(after=300)), fruit("pears", gives(before=4, after=0))]
    code, shown = invoke(monkeypatch, parts)
    assert code == 0
    assert shown.count("ratio") == 1
    rows = [re.split(r" {2,}", line.strip()) for line in shown.splitlines()]
    assert ["apples a tree", "1,200", "300", "0.25", "7"] in rows
    assert ["pears a tree", "4", "0", "0.00", "7"] in rows
    assert "Gained: apples cost 300; pears cost 0." in shown
    assert "Not given up for it: no apples was lost; no pears was lost." in shown
    assert "3 of 3 done" in shown
    assert "MISSED" not in shown and "target" not in shown


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [fruit("apples", gives(before=1), fails), fruit("pears", gives(before=4, after=1))]
    code, shown = invoke(monkeypatch, parts)
    assert code == 1
    assert "FAILED  apples: apples 1: no tree grows here\n" in shown
    assert "last lines" not in shown and "--logs" in shown
    assert "last lines" in invoke(monkeypatch, parts, "--logs")[1]
    assert "pears a tree" in shown and "apples a tree" not in shown and "apples cost" not in shown


def test_an_error_in_the_lab_itself_is_not_hidden() -> None:
    def broken(_context: Context) -> Facts:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        demo.run([fruit("apples", broken)], Overall(2))


def test_parts_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [fruit("apples", fails), fruit("pears", gives(before=4, after=1))]
    assert invoke(monkeypatch, parts, "pears")[0] == 0
    code, shown = invoke(monkeypatch, parts, "plums")
    assert code == 2 and "apples, pears" in shown


def test_two_at_a_time() -> None:
    lock, running, most = threading.Lock(), set[int](), [0]

    def grow(_context: Context) -> Facts:
        with lock:
            running.add(threading.get_ident())
            most[0] = max(most[0], len(running))
        time.sleep(0.05)
        with lock:
            running.discard(threading.get_ident())
        return {"before": 1, "after": 1}

    demo.run([fruit("apples", *[grow] * 6)], Overall(2))
    assert most == [2]


def test_all_parts_of_the_lab_have_different_names() -> None:
    parts = catalogue.parts()
    assert list(parts) == ["pagetable", "dirty", "power"]
    names = [claim.name for part in parts.values() for claim in part.claims]
    assert len(names) == len(set(names)) >= 9
    assert all(claim.seconds > 0 for part in parts.values() for claim in part.claims)
    # Two at a time, on an idle host.
    assert sum(claim.seconds for part in parts.values() for claim in part.claims) / 2 < 200


class Clock:
    """A clock that moves when a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_silence_never_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), StringIO()
    shown = PlainOverall(Console(file=said, width=200), 2)
    unit = shown.add("apples", 60)
    shown.add("pears", 60)
    spoke = [clock.now]
    with unit:
        unit.booting("m", 3)
        for _ in range(120):
            clock.now += 0.5
            so_far = len(said.getvalue())
            shown.pulse()
            if len(said.getvalue()) > so_far:
                spoke.append(clock.now)
    assert max(later - earlier for earlier, later in pairwise(spoke)) < 10
    lines = said.getvalue().splitlines()
    assert lines[0] == "apples: begins"
    assert lines[1].startswith("... apples: boots, 8 s (0 of 2 done, ")
    assert len(lines) >= 8
    assert lines[-1] == "apples: done after 60 s (1 of 2 done, about a minute left)"


def test_what_is_left_follows_the_hosts_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    shown = Overall(1)
    units = [shown.add(name, 60) for name in ("a", "b", "c")]
    assert shown.summary == "0 of 3 done, some 3 minutes left"
    with units[0]:
        clock.now += 240
    # Four times slower than an idle host.
    assert shown.summary == "1 of 3 done, some 8 minutes left"
    for unit in units[1:]:
        with unit:
            clock.now += 60
    assert shown.summary == "3 of 3 done"
