# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whether conditions on registers and memory may hold at once.

Invariant: doubt has something refused. Where a statement is about all ways, a way is then followed; where it
is about one (layout_checker/claim.py), the way does not count. So who asks says what doubt means.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    solver.add(*terms)
    answer = solver.check()
    if answer == z3.unknown:
        _quick.cache_clear()  # nothing is asked of one that was stopped
        answer = _thorough(terms)
    else:
        solver.pop()
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
    try:
        done: dict[int, z3.ExprRef] = {}
        terms = tuple(_with_function(term, done) for term in terms)
        solver = z3.Tactic("qfufbv_ackr").solver()
    except _Stored:
        solver = z3.SolverFor("QF_AUFBV")
    solver.set("timeout", TIMEOUT)
    solver.add(*terms)
    return solver.check()


class _Stored(Exception):
    """A term is about memory after a store."""


def _with_function(term: z3.ExprRef, done: dict[int, z3.ExprRef]) -> z3.ExprRef:
    """The term with a function of the address for each byte of memory that is read."""
    known = done.get(term.get_id())
    if known is not None:
        return known
    if z3.is_select(term):
        memory, address = term.children()
        if not z3.is_const(memory):
            raise _Stored
        byte = z3.Function(f"byte of {memory}", address.sort(), term.sort())
        changed = byte(_with_function(address, done))
    elif z3.is_array(term):
        raise _Stored
    else:
        parts = [_with_function(child, done) for child in term.children()]
        changed = term.decl()(*parts) if parts else term
    done[term.get_id()] = changed
    return changed
