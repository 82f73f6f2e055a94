# SPDX-License-Identifier: Apache-2.0 OR MIT
"""power-emulation on consoles that are made up, and the command that starts the emulator."""

from collections.abc import Mapping

import pytest

from trapless_lab.power import machine as power
from trapless_lab.power.console import Console
from trapless_lab.power.experiments import emulation
from trapless_lab.power.experiments.emulation import STARTS, WORKLOADS

# Of each repetition, in ticks: each workload is as long as every other.
TICKS = {"bare": 100, "base": 1000, "inplace": 200, "emulated": 4000}


def consoles(changed: Mapping[str, int] | None = None) -> dict[str, Console]:
    """Return what each way prints; ``changed``: the ticks of a stat."""
    return {
        way: Console(
            "".join(
                f"result {name} {10 * ((changed or {}).get(way, ticks) if name == 'stat' else ticks)} 10\n"
                for name in (*STARTS, *WORKLOADS)
            )
        )
        for way, ticks in TICKS.items()
    }


def test_a_row_is_of_one_repetition_and_compares_with_kvm() -> None:
    assert emulation.row("fork", consoles()) == {
        "workload": "fork",
        **{"bare": 125, "base": 1250, "inplace": 250, "emulated": 5000},
        "emulated, of plain KVM": 4.0,
        "emulated, of in place": 20.0,
    }


@pytest.mark.parametrize(
    ("ticks", "complaints"),
    [
        (4000, []),
        (150, ["in place is faster than full translation"]),
        (90, ["an emulator needs more than bare metal", "in place is faster than full translation"]),
    ],
)
def test_what_cannot_be_is_named(ticks: int, complaints: list[str]) -> None:
    found = emulation.checks(consoles({"emulated": ticks}))
    assert [check.name for check in found if not check.holds] == complaints
    assert all("stat" in check.text for check in found if not check.holds)


def test_the_emulated_board_is_that_of_bare_metal() -> None:
    words = power.emulated("x", "run=boot").split()
    assert words[:3] == ["run", "x", power.EMULATOR]
    assert words[words.index("-m") + 1] == f"{power.BARE.memory_mib}M"
    assert words[words.index("-cpu") + 1] == power.BARE.cpu
    assert set(power.BARE.linux_args) <= set(words) and 'start=0"' in words
