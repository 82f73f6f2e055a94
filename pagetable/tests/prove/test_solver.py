# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the provers are told about conditions is what another solver of z3's says of them.

All questions of a proof share one solver, answers are kept, and some go to a second one, which has a function
in the place of memory. An answer to another question than the one asked would prove anything.

Not seen: a mistake that all of z3's solvers make.
"""

import sys
from pathlib import Path

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

from layout_checker.claim import holds  # noqa: E402
from layout_checker.ways import consistent  # noqa: E402
from zero_run_finder import solver  # noqa: E402
from zero_run_finder.solver import satisfiable  # noqa: E402
from zero_run_finder.symbolic import MEMORY, memory_named  # noqa: E402

RDI, RSI = z3.BitVecs("rdi rsi", 64)
STORED = z3.Store(memory_named(MEMORY), RDI, z3.BitVecVal(7, 8))

# Registers, what they point to, and what that points to: as in conditions of the hypervisor's code.
VALUES = [
    RDI,
    RSI,
    *(z3.ZeroExt(56, z3.Select(memory_named(MEMORY), at)) for at in (RDI, RDI + 1, RSI, RDI + RSI)),
    z3.ZeroExt(56, z3.Select(memory_named(MEMORY), z3.ZeroExt(56, z3.Select(memory_named(MEMORY), RSI)))),
    z3.ZeroExt(56, z3.Select(memory_named("memory another"), RDI)),
]
OF_A_STORE = z3.ZeroExt(56, z3.Select(STORED, RSI))
NUMBERS = [z3.BitVecVal(n, 64) for n in (0, 1, 7, 255, 256, 1 << 63)]
COMPARISONS = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    z3.ULT,
    lambda a, b: a & b == 0,
    lambda a, b: a + b == 7,
]


def conditions(values: list[z3.BitVecRef]) -> st.SearchStrategy[list[z3.BoolRef]]:
    one = st.builds(
        lambda compare, a, b: compare(a, b),
        st.sampled_from(COMPARISONS),
        st.sampled_from(values),
        st.sampled_from([*values, *NUMBERS]),
    )
    return st.lists(one, min_size=1, max_size=5)


def by_another(terms: list[z3.BoolRef]) -> bool:
    other = z3.SolverFor("QF_AUFBV")
    other.add(*terms)
    answer = other.check()
    assert answer != z3.unknown
    return bool(answer == z3.sat)


@pytest.fixture(scope="module")
def seen() -> set[bool]:
    """The answers that there were."""
    return set()


@given(conditions(VALUES))
@settings(max_examples=300)
def test_a_kept_solver_answers_as_a_new_one(seen: set[bool], terms: list[z3.BoolRef]) -> None:
    answer = by_another(terms)
    seen.add(answer)
    assert satisfiable(terms) == answer
    assert satisfiable(list(reversed(terms))) == answer


def test_both_answers_were_among_them(seen: set[bool]) -> None:
    assert seen == {False, True}


@given(conditions(VALUES))
@settings(max_examples=100)
def test_the_second_solver_answers_as_another(terms: list[z3.BoolRef]) -> None:
    assert (solver._thorough(tuple(terms)) == z3.sat) == by_another(terms)


@given(conditions([*VALUES, OF_A_STORE]))
@settings(max_examples=100)
def test_memory_after_a_store_is_no_function(terms: list[z3.BoolRef]) -> None:
    assert (solver._thorough(tuple(terms)) == z3.sat) == by_another(terms)


def test_a_store_shows() -> None:
    """The control: with a function for memory as it was before, this would be possible."""
    assert solver._thorough((RDI == RSI, OF_A_STORE != 7)) == z3.unsat


def test_nothing_is_left_of_a_question_that_is_none() -> None:
    with pytest.raises(z3.Z3Exception):
        satisfiable([RDI == 1, RSI])
    assert satisfiable([RDI == 2])


class GivesUp:
    """A solver that is stopped each time, and how often another was wanted for the next question."""

    def __init__(self) -> None:
        self.renewed = 0

    def __call__(self) -> "GivesUp":
        return self

    def push(self) -> None: ...

    def pop(self) -> None: ...

    def add(self, *_: z3.BoolRef) -> None: ...

    def check(self) -> z3.CheckSatResult:
        return z3.unknown

    def cache_clear(self) -> None:
        self.renewed += 1


@pytest.fixture
def gives_up(monkeypatch: pytest.MonkeyPatch) -> GivesUp:
    first = GivesUp()
    monkeypatch.setattr(solver, "_quick", first)
    monkeypatch.setattr(solver, "_known", {})
    return first


def test_what_the_first_gives_up_goes_to_the_second(gives_up: GivesUp) -> None:
    assert not satisfiable([RDI == 1, RDI == 2])
    assert satisfiable([RDI == 1, RSI == 2])
    assert gives_up.renewed == 2


def test_who_asks_says_what_doubt_means(gives_up: GivesUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a claim's way that it cannot be taken; that what has to hold on all ways does not."""
    monkeypatch.setattr(solver, "_thorough", lambda _: z3.unknown)
    asked = [RDI == 1, z3.ULT(RSI, RDI)]
    assert satisfiable(asked) and not satisfiable(asked, in_doubt=False)
    assert not holds(z3.ULT(RSI, RDI)) and not consistent((RDI == 1,), z3.ULT(RSI, RDI))
