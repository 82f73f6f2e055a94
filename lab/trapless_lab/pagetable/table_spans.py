# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of each allocation and each free of a page table in the kernel, by level.

Invariant: every execution of the functions below is a record of one level. After an RCU grace period tables
are freed in the order in which they began to wait: with one CPU the batches leave in the order in which they
were filled.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal

from ..errors import LabError
from ..plugins.spans import EVERYWHERE, START, STOP, Plan, Record
from ..symbols import Area

Level = Literal["pte", "pmd", "pud", "pgd", "user_pgd"]
Direction = Literal["allocate", "free"]
LEVELS: tuple[Level, ...] = ("pte", "pmd", "pud", "pgd", "user_pgd")


class _Id(IntEnum):
    ALLOCATE = 0x10
    FREE = 0x20
    TO_BE_FREED = 0x30
    WAITED = 0x40
    AT_ONCE = 0x41
    NO_TABLE = 0x42


_ALLOCATE = ("pte_alloc_one", "__pmd_alloc", "__pud_alloc", "pgd_alloc", "xen_pgd_alloc")
_FREE = {3: "pgd_free", 4: "xen_pgd_free"}
_TO_BE_FREED = ("___pte_free_tlb", "___pmd_free_tlb", "___pud_free_tlb")
# How a table of the lower levels is freed: after its grace period, or at once if memory is short.
_GIVE_BACK, _WAITED, _AT_ONCE = "free_page_and_swap_cache", "tlb_remove_table_rcu", "tlb_remove_table"
# The point at which the table is allocated, before its parent's entry is written.
_POINTS = ("xen_alloc_pmd", "xen_alloc_pud")
_FOREIGN = re.compile(r"(?:xen_)?asm_(?:exc|sysvec|common|spurious)_\w+|__switch_to_asm")


@dataclass(frozen=True)
class TableSpan:
    """One table made or given back.

    ``ready`` counts its instructions until the table is allocated, for levels whose function then also writes
    the parent's entry; for others it is all of them.
    """

    level: Level
    direction: Direction
    at: int
    instructions: int
    kernel: int
    ready: int
    foreign: bool


def plan(kernel: Area) -> Plan:
    """Return the addresses that the plugin has to watch in this kernel."""
    at = {name: address for address, name in kernel.symbols}
    foreign = [address for address, name in kernel.symbols if _FOREIGN.fullmatch(name)]
    wanted = [*_ALLOCATE, *_FREE.values(), *_TO_BE_FREED, _GIVE_BACK, _WAITED, _AT_ONCE, *_POINTS]
    if missing := [name for name in [*wanted, "__switch_to_asm"] if name not in at]:
        raise LabError(f"the kernel has no {', '.join(missing)}")

    def body(name: str) -> tuple[int, int]:
        index = kernel.addresses.index(at[name])
        return at[name], kernel.addresses[index + 1] - 1

    return Plan(
        calls=[
            *((at[name], _Id.ALLOCATE + level, EVERYWHERE) for level, name in enumerate(_ALLOCATE)),
            *((at[name], _Id.FREE + level, EVERYWHERE) for level, name in _FREE.items()),
            (at[_GIVE_BACK], _Id.WAITED, body(_WAITED)),
            (at[_GIVE_BACK], _Id.AT_ONCE, body(_AT_ONCE)),
            (at[_GIVE_BACK], _Id.NO_TABLE, EVERYWHERE),
        ],
        events=[(at[name], _Id.TO_BE_FREED + level) for level, name in enumerate(_TO_BE_FREED)],
        points=[at[name] for name in _POINTS],
        foreign=foreign,
    )


def tables(records: Sequence[Record]) -> list[TableSpan]:
    """Return every table made and given back, in order."""
    waiting: deque[int] = deque()
    found = []
    for record in records:
        group, level = record.id & 0xF0, record.id & 0xF
        if group == _Id.TO_BE_FREED:
            waiting.append(level)
        elif group == _Id.ALLOCATE:
            found.append(_span(record, level, "allocate"))
        elif group == _Id.FREE:
            found.append(_span(record, level, "free"))
        elif record.id in (_Id.WAITED, _Id.AT_ONCE):
            if not waiting:
                raise LabError("a page table was freed that no level had released")
            level = waiting.popleft() if record.id == _Id.WAITED else waiting.pop()
            found.append(_span(record, level, "free"))
    return found


def _span(record: Record, level: int, direction: Direction) -> TableSpan:
    return TableSpan(
        LEVELS[level],
        direction,
        record.at,
        record.instructions,
        record.kernel,
        record.point or record.instructions,
        bool(record.foreign),
    )


def marks(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Return where each pair of markers of the guest's programs began and ended, innermost pairs alone."""
    marked = [record for record in records if record.id in (START, STOP)]
    return [(a.at, b.at) for a, b in pairwise(marked) if (a.id, b.id) == (START, STOP)]
