# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A claim: how values flow on some way through a function of the stock hypervisor.

A passage (witness.py) is text, and a compiler that allocates registers, orders instructions or tests a bit
otherwise writes another text for the same source. A claim is about what the processor computes (ways.py):

    Claim("page_unlock", To(EXCHANGE), lambda way, x: [
        way.address == way.argument(0) + x.XEN_PAGE_INFO_TYPE_INFO,
        way.value == u64(way.argument(0) + x.XEN_PAGE_INFO_TYPE_INFO) - 1 - x.PGT_locked,
    ])

says that one of the ways through page_unlock leads to an exchange of memory at that address for that value.
A demand that is a term of z3 has to hold for all values of arguments and memory. `way.decided(C)` wants that
the way took a branch whose condition is C, no weaker and no stronger: this one, if the way leads to a branch.

Invariants:

  - A claim holds with the values of the hypervisor, and with no other value of any of its items; the tests
    change each bit of each.
  - A claim that names an item shows it: `items` are those that its demands have read.
  - If a claim does not hold, one of its items is refused, by it or by the proof of what is `given`: so each
    claim is asked for all of its items (proofs.py).

Not covered: that all ways do what one does; what ways do under other conditions than those that are exactly
one's; in which order two reads of one place come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TypeAlias, TypeVar, cast

import z3

from zero_run_finder.solver import satisfiable

from .hypervisor import Hypervisor
from .known_functions import place
from .report import Refused
from .ways import (
    BRANCH,
    CALL,
    EXCHANGE,
    STORE,
    UNKNOWN,
    Code,
    Event,
    Walker,
    Way,
    argument,
    loaded,
    places,
    stack_end,
)
from .witness import Witness

BEYOND = "beyond"
MOST_TRIED = 40  # ways on which another value is looked for
MOST_WAYS = 200  # sets of them that are kept
MOST_FOUND = 100  # of one set: claims are about ways that are among the shortest

Answer = TypeVar("Answer")


def u8(address: z3.BitVecRef) -> z3.BitVecRef:
    """The byte at an address."""
    return loaded(address, 1)


def u16(address: z3.BitVecRef) -> z3.BitVecRef:
    """The 16 bits at an address."""
    return loaded(address, 2)


def u32(address: z3.BitVecRef) -> z3.BitVecRef:
    """The 32 bits at an address."""
    return loaded(address, 4)


def u64(address: z3.BitVecRef) -> z3.BitVecRef:
    """The 64 bits at an address."""
    return loaded(address, 8)


def low(term: z3.BitVecRef, bits: int = 32) -> z3.BitVecRef:
    """The low bits of a value, the others cleared."""
    return z3.ZeroExt(64 - bits, z3.Extract(bits - 1, 0, term))


def flags32(address: z3.BitVecRef) -> z3.BitVecRef:
    """The 32 bits at an address, as flags: what a mask has above them would be of something unknown."""
    return z3.Concat(z3.BitVec(BEYOND, 32), z3.Extract(31, 0, u32(address)))


def log2(value: z3.BitVecRef) -> z3.BitVecRef:
    """The logarithm of a value; of one that is no power of two, nothing that is computed anywhere."""
    if not z3.is_bv_value(value):
        return value
    number = value.as_long()
    if number <= 0 or number & (number - 1):
        return z3.BitVec("no power of two", 64)
    return z3.BitVecVal(number.bit_length() - 1, 64)


class NotHere(Exception):
    """The way has nothing of what is asked for."""


class Values:
    """The values of the items; one that has none stands for any."""

    def __init__(self, values: dict[str, int]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getattr__(self, item: str) -> z3.BitVecRef:
        self.read.add(item)
        if item in self._values:
            return z3.BitVecVal(self._values[item], 64)
        return z3.BitVec(UNKNOWN + item, 64)


@dataclass(frozen=True)
class Decided:
    """That the way took a branch under this condition, or one of the others, which say the same."""

    condition: z3.BoolRef
    others: tuple[z3.BoolRef, ...] = ()


@dataclass(frozen=True)
class Computed:
    """That something on the way computed this value."""

    term: z3.BitVecRef


@dataclass(frozen=True)
class Exactly:
    """That the way is taken under this condition, and under no other."""

    condition: z3.BoolRef


Demand: TypeAlias = z3.BoolRef | bool | Decided | Computed | Exactly


class Here:
    """What a claim can ask about a way, and about the event at its end.

    What is a bool has its answer at once: an item that is read in it alone would not be among the claim's.
    """

    @staticmethod
    def decided(condition: z3.BoolRef, *others: z3.BoolRef) -> Decided:
        """That the way took a branch under one of these conditions."""
        return Decided(condition, others)

    computed = Computed
    exactly = Exactly

    def __init__(self, way: Way, address_of: Callable[[str], int]) -> None:
        self.way = way
        self._address_of = address_of

    argument = staticmethod(argument)
    """What the function was called with."""

    def passed(self, index: int) -> z3.BitVecRef:
        """What the call at the end of the way is given."""
        return self.way.event.arguments[index]

    @property
    def address(self) -> z3.BitVecRef:
        """Where the store or exchange at the end of the way writes."""
        return _there(self.way.event.address)

    @property
    def value(self) -> z3.BitVecRef:
        """What the store or exchange at the end of the way writes."""
        return _there(self.way.event.value)

    @property
    def size(self) -> int:
        """How many bytes it writes."""
        return self.way.event.size

    @property
    def locked(self) -> bool:
        """Whether no other CPU comes between."""
        return self.way.event.locked

    @property
    def result(self) -> z3.BitVecRef:
        """What the function gives back at the end of the way, or the call."""
        return _there(self.way.event.result)

    def current(self, x: Values) -> z3.BitVecRef:
        """The running vcpu."""
        return u64(stack_end(x.XEN_STACK_MASK) - x.XEN_STACK_CURRENT)

    def cpu(self, x: Values) -> z3.BitVecRef:
        """The number of this CPU."""
        return u32(stack_end(x.XEN_STACK_MASK) - x.XEN_STACK_PROCESSOR_ID)

    def called(self, name: str, last: bool = False) -> Event:
        """The first call of a function before the end of the way, or the last."""
        target = self._address_of(name)
        found = [e for e in self.way.events[:-1] if e.kind == "call" and e.target == target]
        if not found:
            raise NotHere
        return found[-1 if last else 0]

    def stored(self, size: int, address: z3.BitVecRef, value: z3.BitVecRef) -> bool:
        """Whether something was stored before the end of the way."""
        return any(
            e.kind == STORE
            and e.size == size
            and holds(_there(e.address) == address)
            and value.eq(_there(e.value))
            for e in self.way.events[:-1]
        )

    @staticmethod
    def inside(address: z3.BitVecRef, base: z3.BitVecRef) -> bool:
        """Whether an address is at a fixed distance from another."""
        return bool(z3.is_bv_value(z3.simplify(address - base)))

    def counted(self, base: z3.BitVecRef) -> bool:
        """Whether 32 bits at a fixed distance from `base` became one more, with no other CPU between."""
        stores = (e for e in self.way.events[:-1] if e.kind == STORE and e.size == 4 and e.locked)
        near = (e for e in stores if self.inside(_there(e.address), base))
        return any(holds(_there(e.value) == low(u32(_there(e.address)) + 1)) for e in near)

    def decided_by(self, base: z3.BitVecRef, *shows: Callable[[z3.BitVecRef], z3.BoolRef]) -> bool:
        """Whether the way took branches, as `shows` say, by 32 bits at a fixed distance from `base`."""
        read = {a.get_id(): a for c in self.way.conditions for a in addresses(c) if self.inside(a, base)}
        return any(
            all(any(holds(c == show(u32(address))) for c in self.way.conditions) for show in shows)
            for address in read.values()
        )

    def result_of(self, shows: Callable[[z3.BitVecRef], z3.BoolRef]) -> bool:
        """Whether what one of the callees has given back is as `shows` says."""
        results = [e.result for e in self.way.events if e.kind == CALL and e.result is not None]
        return any(holds(shows(result)) for result in results)

    @property
    def exchanged(self) -> Event:
        """The last exchange before the end of the way."""
        found = [e for e in self.way.events[:-1] if e.kind == EXCHANGE]
        if not found:
            raise NotHere
        return found[-1]

    @property
    def calls_nothing(self) -> bool:
        """Whether nothing is called before the end of the way."""
        return not any(e.kind == CALL for e in self.way.events[:-1])

    def variable(self, name: str) -> z3.BitVecRef:
        """The address of a variable of the hypervisor."""
        return z3.BitVecVal(self._address_of(name), 64)


class Anywhere(Here):
    """A way on which everything is, to see what a claim reads."""

    def __init__(self) -> None:
        terms = [z3.BitVec(f"some {n}", 64) for n in range(10)]
        event = Event("", 0, 0, tuple(terms[:6]), terms[6], terms[7], terms[8], left=((0, terms[9]),))
        super().__init__(Way((), (event, event), ()), lambda _: 0)

    def called(self, name: str, last: bool = False) -> Event:
        """Everything is called."""
        return self.way.event

    @property
    def exchanged(self) -> Event:
        """Everything is exchanged."""
        return self.way.event


@dataclass(frozen=True)
class To:
    """To which events the ways lead that a claim is about."""

    kind: str
    callee: str = ""


class Ways:
    """The ways through a function that were found so far, and what was found out about them.

    Invariant: the ways depend on the function's code alone, and serve every build that has the same. What
    was found out about them also depends on where names are: each answer is kept with the addresses that it
    has used, and serves while these are the same.
    """

    def __init__(self, found: Iterator[Way], walker: Walker) -> None:
        self._rest = found
        self._found: list[Way] = []
        self.walker = walker
        self._answers: dict[object, list[tuple[dict[str, int | None], object]]] = {}

    def answer(
        self, question: object, hypervisor: Hypervisor, find: Callable[[Callable[[str], int]], Answer]
    ) -> Answer:
        """What `find` gives, called only if the names it asks for are not where they were the last time."""
        known = self._answers.setdefault(question, [])
        for names, found in known:
            if all(address(hypervisor, name) == at for name, at in names.items()):
                return cast(Answer, found)
        asked: dict[str, int | None] = {}

        def address_of(name: str) -> int:
            at = asked[name] = address(hypervisor, name)
            if at is None:
                raise NotHere
            return at

        answer = find(address_of)
        known.append((asked, answer))
        return answer

    def __iter__(self) -> Iterator[Way]:
        for index in range(MOST_FOUND):
            if index == len(self._found):
                if (way := next(self._rest, None)) is None:
                    return
                self._found.append(way)
            yield self._found[index]


class Claim:
    """A function and how values flow in it. It is asked as a passage (witness.py) is."""

    def __init__(
        self,
        function: str,
        to: To,
        shows: Callable[[Here, Values], list[Demand]],
        behind: To | None = None,
        given: dict[str, Claim | Witness] | None = None,
    ) -> None:
        """With `behind` the ways begin at the instruction that does that, and nothing is known there.

        Items that are `given` are shown by other proofs, each of which is one of its item's.
        """
        self.function = function
        self.to = to
        self.shows = shows
        self.behind = behind
        self.given = given or {}

    @cached_property
    def items(self) -> set[str]:
        """The items whose values are shown."""
        values = Values({})
        self.shows(Anywhere(), values)
        return values.read

    def seen(self, hypervisor: Hypervisor, values: dict[str, int]) -> bool:
        """Whether the function has a way on which the values flow so; an item that has none is any."""
        return any(self._seen(hypervisor, ways, values) for ways in self._ways(hypervisor))

    def _seen(
        self, hypervisor: Hypervisor, ways: Ways, values: dict[str, int], count: int | None = None
    ) -> bool:
        """Whether one of the ways meets so many of the demands, or all."""
        question = self, count, tuple((item, values.get(item)) for item in sorted(self.items))
        return ways.answer(
            question,
            hypervisor,
            lambda address_of: any(self._holds(Here(way, address_of), way, values, count) for way in ways),
        )

    def _holds(self, here: Here, way: Way, values: dict[str, int], count: int | None = None) -> bool:
        try:
            return all(met(way, demand) for demand in self.shows(here, Values(values))[:count])
        except NotHere:
            return False
        except z3.Z3Exception as error:
            raise Refused(f"{self.function}: {str(error).splitlines()[0]}") from error

    def _ways(self, hypervisor: Hypervisor) -> Iterator[Ways]:
        symbol = place(hypervisor, self.function)
        code = Code.of(hypervisor, symbol)
        callee = hypervisor.symbol(self.to.callee).address if self.to.callee else None
        if not self.behind:
            yield ways_from(code, symbol.address, self.to.kind, callee)
            return
        first = hypervisor.symbol(self.behind.callee).address if self.behind.callee else None
        for start in places_of(code, self.behind.kind, first):
            yield ways_from(code, start, self.to.kind, callee)

    def values_of(self, hypervisor: Hypervisor, item: str, others: dict[str, int]) -> set[int]:
        """The values of an item with which it holds, of those that instructions have as offsets."""
        if item not in self.items:
            return set()
        rest = {name: others[name] for name in sorted(self.items - {item}) if name in others}
        question = self, item, tuple(rest.items())
        found: set[int] = set()
        for ways in self._ways(hypervisor):
            found |= ways.answer(question, hypervisor, partial(self._values_on, ways, item, rest))
        return found

    def _values_on(
        self, ways: Ways, item: str, rest: dict[str, int], address_of: Callable[[str], int]
    ) -> frozenset[int]:
        """Values of an item with which it holds on the first ways on which it does with any value."""
        near = (way for way in ways if self._holds(Here(way, address_of), way, rest))
        first = [Here(way, address_of) for way in itertools.islice(near, MOST_TRIED)]
        return frozenset(
            number
            for number in (ways.walker.offsets() if first else ())
            if any(self._holds(here, here.way, {**rest, item: number}) for here in first)
        )

    def demand(self, hypervisor: Hypervisor, values: dict[str, int], item: str) -> None:
        """Refuse unless the function shows the value of this item, or another is to blame."""
        blamed = self.blamed(hypervisor, values)
        if blamed is None:
            raise Refused(f"{self.function} has no way on which it would be seen")
        if item in blamed:
            value = f"{values[item]:#x}" if item in values else "it"
            raise Refused(f"{self.function} does not use {value}")

    def blamed(self, hypervisor: Hypervisor, values: dict[str, int]) -> set[str] | None:
        """The items that are wrong: those that the first demand brings in which no way meets.

        None of them, if what another claim shows of what is given is wrong; None, if it is no item's fault.
        """
        if self.seen(hypervisor, values):
            return set()
        known: set[str] = set()
        for count, items in enumerate(self._items_of_demands, 1):
            if any(self._seen(hypervisor, ways, values, count) for ways in self._ways(hypervisor)):
                known |= items
                continue
            for item in sorted(items & self.given.keys()):
                if wrong(self.given[item], hypervisor, values, item):
                    return set()
            return (items - known - self.given.keys()) or items or None
        return None

    @cached_property
    def _items_of_demands(self) -> list[set[str]]:
        demands = self.shows(Anywhere(), Values({}))
        names = [places(z3.simplify(term_of(d))) if not isinstance(d, bool) else () for d in demands]
        return [{n.removeprefix(UNKNOWN) for n in each if n.startswith(UNKNOWN)} for each in names]


class Either:
    """A claim for each form that the source itself has had, or that a compiler gives to functions.

    It is asked as one claim is. One of the forms has to hold; shown are the items that each of them shows.
    """

    def __init__(self, *forms: Claim) -> None:
        self.forms = forms
        self.function = forms[0].function
        self.given: dict[str, Claim | Witness] = {}

    @cached_property
    def items(self) -> set[str]:
        """The items whose values every form shows."""
        return set.intersection(*(form.items for form in self.forms))

    def seen(self, hypervisor: Hypervisor, values: dict[str, int]) -> bool:
        """Whether one of the forms holds; one that is about functions that are not there does not."""
        return any(self._seen(form, hypervisor, values) for form in self.forms)

    @staticmethod
    def _seen(form: Claim, hypervisor: Hypervisor, values: dict[str, int]) -> bool:
        try:
            return form.seen(hypervisor, values)
        except Refused:
            return False

    def values_of(self, hypervisor: Hypervisor, item: str, others: dict[str, int]) -> set[int]:
        """The values of an item with which one of the forms holds."""
        forms = (form for form in self.forms if self._seen(form, hypervisor, others))
        return set().union(*(form.values_of(hypervisor, item, others) for form in forms))

    def demand(self, hypervisor: Hypervisor, values: dict[str, int], item: str) -> None:
        """Refuse unless one of the forms holds, or one would but for other items, which are refused."""
        if self.seen(hypervisor, values):
            return
        blamed = [self._blamed(form, hypervisor, values) for form in self.forms]
        if not any(b is not None and b <= self.items - {item} for b in blamed):
            raise Refused(f"{self.function} has no way on which it would be seen")

    @staticmethod
    def _blamed(form: Claim, hypervisor: Hypervisor, values: dict[str, int]) -> set[str] | None:
        try:
            return form.blamed(hypervisor, values)
        except Refused:
            return None


def wrong(proof: Claim | Witness, hypervisor: Hypervisor, values: dict[str, int], item: str) -> bool:
    """Whether a proof refuses an item under its own name."""
    if isinstance(proof, Claim):
        return item in (proof.blamed(hypervisor, values) or ())
    return item not in values or not proof.seen(hypervisor, {item: values[item]})


# -- what is kept ---------------------------------------------------------------------------------


@lru_cache(maxsize=MOST_WAYS)
def ways_from(code: Code, start: int, kind: str, callee: int | None) -> Ways:
    """The ways through a function from an address on, found once for all builds that have the same bytes."""
    walker = Walker(code)
    return Ways(walker.ways(start, kind, callee), walker)


@lru_cache(maxsize=MOST_WAYS)
def places_of(code: Code, kind: str, callee: int | None) -> list[int]:
    """The instructions of a function at which an event of a kind is."""
    return Walker(code).places_of(kind, callee)


def address(hypervisor: Hypervisor, name: str) -> int | None:
    """Where a symbol is, or the only clone of a function."""
    symbols = hypervisor.symbols.get(name, [])
    if len(symbols) == 1:
        return symbols[0].address
    try:
        return place(hypervisor, name).address
    except Refused:
        return None


def addresses(term: z3.ExprRef) -> Iterator[z3.BitVecRef]:
    """The addresses in memory that a term reads."""
    if z3.is_select(term):
        yield term.arg(1)
    for child in term.children():
        yield from addresses(child)


# -- what holds -----------------------------------------------------------------------------------


def met(way: Way, demand: Demand) -> bool:
    """Whether a way meets a demand. One that depends on an item without a value is met."""
    if isinstance(demand, bool):
        return demand
    wanted = z3.simplify(term_of(demand))
    if any(name.startswith(UNKNOWN) for name in places(wanted)):
        return True
    if isinstance(demand, Decided):
        taken = way.conditions[-1:] if way.event.kind == BRANCH else way.conditions
        return any(decides(taken, z3.simplify(one)) for one in (wanted, *demand.others))
    if isinstance(demand, Computed):
        return any(c.eq(wanted) for c in way.computed)
    if isinstance(demand, Exactly):
        return holds(z3.And(*way.conditions) == wanted)
    return holds(wanted)


def decides(taken: tuple[z3.BoolRef, ...], wanted: z3.BoolRef) -> bool:
    """Whether one of the conditions is the wanted one."""
    near = [c for c in taken if places(c) and places(c) <= places(wanted)]
    return any(c.eq(wanted) for c in near) or any(holds(c == wanted) for c in near)


def term_of(demand: z3.BoolRef | Decided | Computed | Exactly) -> z3.ExprRef:
    """What a demand says, as a term."""
    if isinstance(demand, Decided | Exactly):
        return demand.condition
    return demand.term if isinstance(demand, Computed) else demand


def holds(claim: z3.BoolRef) -> bool:
    """Whether something is true whatever the arguments and memory are."""
    claim = z3.simplify(claim)
    if z3.is_true(claim) or z3.is_false(claim):
        return bool(z3.is_true(claim))
    return not satisfiable((z3.Not(claim),))


def _there(term: z3.BitVecRef | None) -> z3.BitVecRef:
    if term is None:
        raise NotHere
    return term
