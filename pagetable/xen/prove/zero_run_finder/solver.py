# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whether conditions on registers and memory may hold at once.

Invariant: doubt has something refused. Where a statement is about all ways, a way is then followed; where it
is about one (layout_checker/claim.py), the way does not count. So who asks says what doubt means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import z3

QUICK, TIMEOUT = 100, 20_000  # ms, of a question: at first, and if that is not enough
MOST_KEPT = 20_000  # answers

# Ways to other places have the same conditions. With each answer its terms, which keep their numbers.
_known: dict[frozenset[int], tuple[tuple[z3.BoolRef, ...], z3.CheckSatResult]] = {}


def satisfiable(conditions: Iterable[z3.BoolRef], in_doubt: bool = True) -> bool:
    """Whether there are registers and memory for which all the conditions hold."""
    answer = _answer(tuple(conditions))
    return in_doubt if answer == z3.unknown else bool(answer == z3.sat)


def _answer(terms: tuple[z3.BoolRef, ...]) -> z3.CheckSatResult:
    key = frozenset(term.get_id() for term in terms)
    if known := _known.get(key):
        return known[1]
    if len(_known) > MOST_KEPT:
        _known.clear()
    solver = _quick()
    solver.push()
    try:
        solver.add(*terms)
        answer = solver.check()
    finally:
        solver.pop()  # what is left of a question would be part of all that follow
    if answer == z3.unknown:
        _quick.cache_clear()  # nothing is asked of one that was stopped
        answer = _thorough(terms)
    _known[key] = terms, answer
    return answer


@lru_cache(maxsize=1)
def _quick() -> z3.Solver:
    """One for all questions: to make one takes longer than most of them do."""
    solver = z3.SimpleSolver()
    solver.set("timeout", QUICK)
    return solver


def _thorough(terms: tuple[z3.BoolRef, ...]) -> z3.CheckSatResult:
    """The answer for the few questions that have many addresses: these are compared first.

    That needs a function in the place of memory, which is as good where nothing is stored.
    """
    reads = list(_reads(terms))
    if not all(z3.is_const(read.arg(0)) for read in reads):
        solver = z3.SolverFor("QF_AUFBV")
    else:
        solver = z3.Tactic("qfufbv_ackr").solver()
        terms = _with_function(terms, reads)
    solver.set("timeout", TIMEOUT)
    solver.add(*terms)
    return solver.check()


def _reads(terms: Iterable[z3.ExprRef]) -> Iterator[z3.ExprRef]:
    """Each read of memory in the terms, behind those that its address depends on."""
    seen: set[int] = set()
    todo = [(term, False) for term in terms]
    while todo:
        term, followed = todo.pop()
        if followed:
            yield term
        elif term.get_id() not in seen:
            seen.add(term.get_id())
            if z3.is_select(term):
                todo.append((term, True))
            todo += [(child, False) for child in term.children()]


def _with_function(terms: tuple[z3.BoolRef, ...], reads: list[z3.ExprRef]) -> tuple[z3.BoolRef, ...]:
    """The terms with a function of the address for memory."""
    changed: list[tuple[z3.ExprRef, z3.ExprRef]] = []
    for read in reads:
        memory, address = read.children()
        byte = z3.Function(f"byte of {memory}", address.sort(), read.sort())
        changed.append((read, byte(z3.substitute(address, *changed))))
    return tuple(z3.substitute(term, *changed) for term in terms)
