# SPDX-License-Identifier: Apache-2.0 OR MIT
"""power-two-vcpus on consoles that are made up."""

import pytest

from trapless_lab.errors import LabError
from trapless_lab.power.console import TICKS_PER_SECOND, Console, Measured
from trapless_lab.power.experiments import two_vcpus
from trapless_lab.power.experiments.two_vcpus import GUESTS, TIMES, VCPUS, label

ROUNDS = 2
FORKS = 200


def guest(mode: str, turn: int, vcpus: int, ticks: int, *, times: int = TIMES, sites: int = 0) -> str:
    """Return what one guest prints: one of its two processes takes half of the ``ticks``."""
    name = label(mode, turn, vcpus)
    pair = f"{name}| together on {vcpus}\n" + "".join(
        f"{name}| result fork {taken} {FORKS}\n" for taken in (ticks // 2, ticks)
    )
    return pair * times + f"{name}| done\n{name}.statistics| bt_sites:{sites}\n"


def host(*, sites: int = 7, times: int = TIMES) -> Console:
    """Return the console of all guests: two vCPUs take half the time of one in the first round, and two
    thirds in the second.
    """
    second = TICKS_PER_SECOND
    return Console(
        "".join(
            guest(
                mode,
                turn,
                vcpus,
                second * 6 if vcpus == 1 else second * (3, 4)[turn],
                times=times,
                sites=sites if mode == "inplace" else 0,
            )
            for mode in GUESTS
            for turn in range(ROUNDS)
            for vcpus in VCPUS
        )
    )


def test_the_slower_of_two_processes_counts() -> None:
    assert two_vcpus.rate([Measured(100, FORKS), Measured(TICKS_PER_SECOND, FORKS)]) == 2 * FORKS


def test_rates_are_medians_of_the_rounds() -> None:
    found = two_vcpus.rates(host(), "inplace", ROUNDS)
    assert found.medians == {"one": 66.7, "two": 116.7}
    assert found.quotients == [pytest.approx(1.5), pytest.approx(2.0)]
    assert two_vcpus.row("inplace", found)["spread"] == "1.50 to 2.00"


def test_what_was_meant_to_run_is_checked() -> None:
    def failing(console: Console) -> list[str]:
        return [check.name for check in two_vcpus.checks(console, GUESTS, ROUNDS) if not check.holds]

    assert failing(host()) == []
    assert failing(host(sites=0)) == ["translated"]
    alone = Console(host().text.replace("together on 2", "together on 1"))
    assert failing(alone) == ["processors"]


def test_the_contracts_key_is_only_of_guests_that_pass_the_checks() -> None:
    assert two_vcpus.sound(host(), ROUNDS).medians == {"one": 66.7, "two": 116.7}
    with pytest.raises(LabError, match="translated though they should not be, or not: 4 of 4"):
        two_vcpus.sound(host(sites=0), ROUNDS)
    with pytest.raises(LabError, match="another number of vCPUs: 2 of 4"):
        two_vcpus.sound(Console(host().text.replace("together on 2", "together on 1")), ROUNDS)


def test_a_guest_with_fewer_results_is_named() -> None:
    with pytest.raises(LabError, match="guest base-0-1 said 4 times, not 6,"):
        two_vcpus.rates(host(times=2), "base", ROUNDS)


def test_guests_with_one_vcpu_and_with_two_take_turns() -> None:
    labels = [vm.label for vm in two_vcpus.vms(GUESTS, 1)]
    assert labels == ["base-0-1", "base-0-2", "inplace-0-1", "inplace-0-2"]
    one, two = two_vcpus.vms(("inplace",), 1)
    assert one.arguments == two.arguments and one.mode == two.mode
    assert (one.options, two.options) == (("--cpus", "1"), ("--cpus", "2"))
