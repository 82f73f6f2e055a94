# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the callers of a replaced function expect it to leave alone.

gcc's -fipa-ra, part of -O2, lets a caller keep a value in a caller-saved register across a call of a function
of the same file that does not write that register. Our replacement is compiled by itself and may write any of
them. So behind every call of a replaced function, and of a function that ends with a jump to one, no
caller-saved register but rax may be read before it is written: neither by an instruction, nor by a callee
whose own code reads it before it writes it.

Not covered: a caller of a caller that relies on both of them leaving a register alone, and arguments of a
variadic function beyond those that have names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import cast

from zero_run_finder.flow import THUNK, Function, Variable, halves, variables
from zero_run_finder.registers import ARGUMENTS, CALLER_SAVED

from .header import Header
from .hypervisor import Hypervisor, Symbol
from .report import Refused

# How many parameters a function has whose code does not show it: the named ones of functions that save every
# register that can carry an argument, since only the call knows how many it gives; and those of assembly.
PARAMETERS = {
    "clear_page_sse2": 1,
    "copy_page_sse2": 2,
    "hypercall_create_continuation": 2,
    "panic": 1,
    "printk": 1,
    "snprintf": 3,
}
KEPT = variables(CALLER_SAVED) - halves("rax")


def demand_nothing_kept(header: Header, hypervisor: Hypervisor) -> None:
    """Refuse a call of a replaced function behind which a caller-saved register is still read."""
    functions: dict[str, Function] = {}
    todo = list(header.replaced)
    done: set[str] = set()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        target = hypervisor.symbol(name).address
        for origin, _ in hypervisor.branches_into(target, target):
            caller = hypervisor.function_at(origin)
            if caller not in functions:
                functions[caller] = graph(hypervisor, hypervisor.symbol(caller))
            function = functions[caller]
            if origin not in function.code:
                raise Refused(
                    f"{function.name(origin)} may lead to {name}: it is in the middle of an instruction"
                )
            if function.callee(origin) is None:
                todo.append(caller)  # who calls it gets back what we leave
                continue
            for reader, kept in read_after(function, origin).items():
                names = sorted({variable.partition(".")[0] for variable in kept})
                where = f"{function.name(origin)} calls {name}, and {function.name(reader)}"
                raise Refused(f"{where} reads {', '.join(names)} behind it")


def graph(hypervisor: Hypervisor, symbol: Symbol) -> Function:
    """A function's graph, kept for as long as its bytes are the same."""
    code = hypervisor.read(symbol.address, symbol.size)
    kept = hypervisor.graphs.get(symbol.address)
    if not kept or kept[0] != code:
        hypervisor.graphs[symbol.address] = kept = code, Function(hypervisor, symbol)
    return cast(Function, kept[1])


def first_reads(
    function: Function,
    starts: Iterable[int],
    registers: Iterable[Variable],
    effects: Callable[[int], tuple[set[Variable], set[Variable]] | None],
) -> Iterator[tuple[int, set[Variable]]]:
    """Where some registers are read before they are written, on any path from ``starts``, and which.

    ``effects`` returns what an instruction reads and writes, or None where a path is not to be followed.
    """
    asked: dict[int, set[Variable]] = {}
    todo = [(place, frozenset(registers)) for place in starts]
    while todo:
        address, unwritten = todo.pop()
        if unwritten <= asked.get(address, set()):
            continue
        asked[address] = asked.get(address, set()) | unwritten
        found = effects(address)
        if found is None:
            continue
        reads, writes = found
        if reads & unwritten:
            yield address, reads & unwritten
        left = unwritten - writes
        if left:
            todo += [(place, left) for place in function.follows[address]]


def read_after(function: Function, call: int) -> dict[int, set[Variable]]:
    """Where registers that a callee may write are read behind a call before they are written, and which."""

    def effects(address: int) -> tuple[set[Variable], set[Variable]]:
        reads, writes = function.effects(address)
        if address in function.calls:
            return arguments(function.hypervisor, function.calls[address]), writes
        return reads, writes | set_by_flags(function).get(address, set())

    return dict(first_reads(function, function.follows[call], KEPT, effects))


@lru_cache(maxsize=1024)
def set_by_flags(function: Function) -> dict[int, set[Variable]]:
    """What each setcc writes: a byte, by which compilers begin to write a register."""
    code = ((address, i) for address, i in function.code.items() if i.mnemonic.startswith("set"))
    return {address: halves(i.reg_name(i.operands[0].reg) or "rax") for address, i in code}


def arguments(hypervisor: Hypervisor, target: int | None) -> set[Variable]:
    """What a function's own code reads of its arguments before it writes them, calls of it not followed."""
    symbol = hypervisor.symbol_at(target) if target is not None else None
    if symbol is None or symbol.name.startswith(THUNK):
        return set()  # a callee that is not known leaves nothing: what it is given is set for it
    if symbol.name in PARAMETERS:
        return variables(ARGUMENTS[: PARAMETERS[symbol.name]])
    if symbol.kind != "function" or not symbol.size:
        raise Refused(f"how many parameters {symbol.name} has is not known")
    return read_at_its_head(graph(hypervisor, symbol))


@lru_cache(maxsize=1024)
def read_at_its_head(function: Function) -> set[Variable]:
    """What of its arguments a function reads before it writes them."""

    def effects(address: int) -> tuple[set[Variable], set[Variable]] | None:
        return None if address in function.calls else function.effects(address)

    begin = [function.symbol.address]
    return set().union(*(read for _, read in first_reads(function, begin, variables(ARGUMENTS), effects)))
