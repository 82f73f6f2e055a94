# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A *model* of the module's pool over a day: recorded allocations, and the module's own policy.

Invariant: the model adds and loses no table: each table of the pool is cached or in use. A miss is handled as
in pool.c: the kernel allocates and later frees that table, and soon after the miss the level grows by the
missing tables. Not modelled: memory pressure, and tables that are not freed through the module's hooks.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .policy import RESERVE, Decider, Policy
from .table_spans import LEVELS, TableSpan

TICK_S = 10
PREFILL = (84, 25, 21, 8, 8)
"""The module's own default."""

PAGES = (1, 1, 1, 2, 1)
"""Pages of a table of each level."""

PGD, USER_PGD = LEVELS.index("pgd"), LEVELS.index("user_pgd")

# How long after a miss the level has grown: the module's work item waits for the running task to sleep.
GROWTH_S = 0.001
# The module's limits on one growth.
_STEP = 8


@dataclass(frozen=True)
class Workload:
    """One recorded workload's tables: ``events`` are (when, level, whether made), when from 0 to 1.

    The two top tables are allocated and freed together, so one event stands for both.
    """

    name: str
    seconds: float
    when: Sequence[float]
    what: Sequence[tuple[int, bool]]

    @classmethod
    def of(cls, name: str, seconds: float, tables: Sequence[TableSpan], start: int, end: int) -> "Workload":
        """Take the tables that were made and given back within a stretch of a recording."""
        seen = [t for t in tables if start <= t.at < end and t.level != "user_pgd"]
        return cls(
            name,
            seconds,
            [(t.at - start) / (end - start) for t in seen],
            [(LEVELS.index(t.level), t.direction == "allocate") for t in seen],
        )


@dataclass(frozen=True)
class Run:
    """A run of a workload at some time of the day, for so many seconds."""

    at: float
    seconds: float
    workload: Workload

    def events(self, start: float, end: float) -> Iterator[tuple[float, int, bool]]:
        """Yield (time, level, whether made) within a stretch of the day."""
        when = self.workload.when
        first, last = (bisect_left(when, (edge - self.at) / self.seconds) for edge in (start, end))
        for i in range(first, last):
            yield (self.at + when[i] * self.seconds, *self.workload.what[i])


@dataclass
class Outcome:
    """A day's result: at every tick the pages cached and held, and the sums of the day."""

    cached: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    shrinks: int = 0
    given_back: int = 0

    @property
    def hit_percent(self) -> float:
        """The share of the day's allocations that the pool served."""
        return 100 * sum(self.hits) / max(sum(self.asked), 1)

    @property
    def mean_held(self) -> float:
        """Return the pages that the pool held, as the day's mean."""
        return sum(self.held) / len(self.held)


class _Pool:
    def __init__(self, policy: Policy) -> None:
        self.decider = Decider(policy, PREFILL)
        self.cached = list(PREFILL)
        self.in_use = [0] * len(LEVELS)
        self.lowest = list(PREFILL)
        self.missed = [0] * len(LEVELS)
        self.missing = [0] * len(LEVELS)
        self.hits = self.asked = 0

    def take(self, level: int) -> bool:
        """Make a table; return whether it is the pool's."""
        levels = (PGD, USER_PGD) if level == PGD else (level,)
        self.asked += 1
        lacking = [level for level in levels if not self.cached[level]]
        for each in lacking:
            self.missed[each] += 1
            self.missing[each] += 1
        if lacking:
            return False
        for each in levels:
            self.cached[each] -= 1
            self.in_use[each] += 1
            self.lowest[each] = min(self.lowest[each], self.cached[each])
        self.hits += 1
        return True

    def give_back(self, level: int) -> None:
        for each in (PGD, USER_PGD) if level == PGD else (level,):
            self.cached[each] += 1
            self.in_use[each] -= 1

    def low(self) -> bool:
        return any(self.missing) or min(self.cached) < RESERVE

    def grow(self) -> None:
        for level, missing in enumerate(self.missing):
            owned = self.cached[level] + self.in_use[level]
            wanted = min(missing, max(owned // 2, _STEP)) + max(RESERVE - self.cached[level], 0)
            self.cached[level] += wanted
        self.missing = [0] * len(LEVELS)

    def tick(self) -> int:
        for level, demand in enumerate(self.decider.levels):
            demand.cached, demand.in_use = self.cached[level], self.in_use[level]
            demand.lowest, demand.missed = self.lowest[level], self.missed[level]
        surplus = self.decider.tick()
        for level, tables in enumerate(surplus):
            if tables > self.cached[level]:
                raise AssertionError("the policy gives back more than there is")
            self.cached[level] -= tables
        self.lowest = list(self.cached)
        self.missed = [0] * len(LEVELS)
        return sum(surplus)

    def pages(self, tables: Sequence[int]) -> int:
        return sum(n * size for n, size in zip(tables, PAGES, strict=True))


def simulate(day: Sequence[Run], seconds: int, policy: Policy) -> Outcome:
    """Drive the pool with a policy through a day; ``day`` is in the order of its runs' starts."""
    pool, outcome = _Pool(policy), Outcome()
    # Which tables of each run and level are the pool's; they are freed in the order of allocation.
    made: dict[int, tuple[deque[bool], ...]] = {}
    running: list[tuple[int, Run]] = []
    coming = deque(enumerate(day))
    due: float | None = None
    for start in range(0, seconds, TICK_S):
        end = start + TICK_S
        while coming and coming[0][1].at < end:
            number, run = coming.popleft()
            running.append((number, run))
            made[number] = tuple(deque() for _ in LEVELS)
        events = sorted(
            (time, number, level, is_made)
            for number, run in running
            for time, level, is_made in run.events(start, end)
        )
        for time, number, level, is_made in events:
            if due is not None and time >= due:
                pool.grow()
                due = None
            ours = made[number][level]
            if is_made:
                ours.append(pool.take(level))
                if due is None and pool.low():
                    due = time + GROWTH_S
            elif ours and ours.popleft():
                pool.give_back(level)
        for number, run in list(running):
            if run.at + run.seconds > end:
                continue
            # Tables that a workload had not freed when its recording ended.
            for level, ours in enumerate(made.pop(number)):
                for _ in range(sum(ours)):
                    pool.give_back(level)
            running.remove((number, run))
        if due is not None:
            pool.grow()
            due = None
        given = pool.tick()
        outcome.shrinks += given > 0
        outcome.given_back += given
        outcome.cached.append(pool.pages(pool.cached))
        outcome.held.append(pool.pages(pool.cached) + pool.pages(pool.in_use))
        outcome.hits.append(pool.hits)
        outcome.asked.append(pool.asked)
        pool.hits = pool.asked = 0
    return outcome
