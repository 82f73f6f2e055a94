# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The ways through a function, and what happens on each: calls, stores, exchanges and decisions, as terms.

Registers, spilled values and the order of instructions are gone from a way; what is left is which value went
where. It is what claims (claim.py) are about.

Invariants:

  - A term is what the processor computes, from the function's arguments, from memory and from what callees
    return. An instruction that is not modelled leaves a fresh symbol in all that it writes, of which nothing
    can be shown; one that may write the stack frame makes the frame unknown.
  - Memory has no time: the same address gives the same value wherever it is read. So a term says from which
    place a value was loaded, and not that the place still holds it.
  - Every stack pointer of a function has the same stack, so that its low bits set are one value.
  - Ways are tried shortest first, and no more than some through each instruction: a way that is not found
    is not there, and a claim about it is refused. Nor is one of which it cannot be told in time whether it
    can be taken.

The assumptions are those of the symbolic machine: a callee keeps the callee-saved registers and those parts
of its caller's stack frame of which it does not get the address. A small one that calls nothing keeps all
registers that its code does not write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import capstone
import z3
from capstone import x86

from zero_run_finder.flow import RETURN_THUNK, branch_target, decoded
from zero_run_finder.registers import ARGUMENTS, CALLER_SAVED, GENERAL, PARTS
from zero_run_finder.solver import satisfiable
from zero_run_finder.symbolic import MEMORY, Machine, State, Store, Value, memory_named, number, simple

from .hypervisor import Hypervisor, Symbol
from .report import Refused

MOST_VISITS = 12  # of an instruction, by ways that are no longer than the next
MOST_STEPS = 2_500  # twice what the longest of the claims needs
MOST_KEPT = 20_000  # terms
MOST_FUNCTIONS = 1_000  # of which it is kept what they call and write
LARGEST_LEAF = 96  # bytes
LONGEST_INSTRUCTION = 15  # bytes
WORD = 64
UNKNOWN = "any value of "  # and the name of an item: a claim without a value for it
FRAME_OBJECT = 64  # bytes that a callee may write of what it gets the address of
CALL, EXCHANGE, STORE, RETURN = "call", "exchange", "store", "return"  # events
BRANCH, COPY = "branch", "copy"
NEVER_ON = {"ud2", "int3", "hlt", "iretq", "sysretq"}
LOCK, REPEATED = 0xF0, (0xF2, 0xF3)  # prefixes


def argument(index: int) -> z3.BitVecRef:
    """What the function was called with."""
    return z3.BitVec(ARGUMENTS[index], WORD)


def loaded(address: z3.BitVecRef, size: int) -> z3.BitVecRef:
    """What is in memory at an address, of so many bytes, as 64 bits."""
    memory = memory_named(MEMORY)
    parts = [z3.Select(memory, simple(address + byte)) for byte in range(size)]
    return wide(z3.Concat(*reversed(parts)) if size > 1 else parts[0])


def stack_end(mask: int | z3.BitVecRef) -> z3.BitVecRef:
    """The stack pointer with the bits of a mask set."""
    if isinstance(mask, z3.BitVecRef):
        if not z3.is_bv_value(mask):
            return mask
        mask = mask.as_long()
    return z3.BitVec(f"rsp|{mask:#x}", WORD)


def wide(term: z3.BitVecRef) -> z3.BitVecRef:
    """The same number in 64 bits."""
    return simple(z3.ZeroExt(WORD - term.size(), term)) if term.size() < WORD else simple(term)


def signed(term: z3.BitVecRef, bits: int = 32) -> z3.BitVecRef:
    """The low bits of a value as a number with a sign."""
    return simple(z3.SignExt(WORD - bits, z3.Extract(bits - 1, 0, term))) if bits < WORD else term


def bit_of(address: z3.BitVecRef, index: z3.BitVecRef) -> z3.BitVecRef:
    """A bit of memory by its number from an address on: 1 or 0."""
    return simple(z3.LShR(loaded(address + (index >> 3), 1), index & 7) & 1)


@dataclass(frozen=True)
class Event:
    """What happens at one instruction."""

    kind: str
    at: int
    target: int = 0  # of a call
    arguments: tuple[z3.BitVecRef, ...] = ()
    result: z3.BitVecRef | None = None  # of a call; what a return gives back
    address: z3.BitVecRef | None = None  # of a store or exchange
    value: z3.BitVecRef | None = None  # what is stored
    size: int = 0
    locked: bool = False
    left: tuple[tuple[int, z3.BitVecRef], ...] = ()  # by a call, where an argument points to the frame


@dataclass(frozen=True)
class Step(State):
    """A state, and what led to it."""

    events: tuple[Event, ...] = ()
    computed: tuple[z3.BitVecRef, ...] = ()
    rsp: z3.BitVecRef = field(default_factory=lambda: z3.BitVec("rsp", WORD))


@dataclass(frozen=True)
class Way:
    """A way from a function's beginning up to an event, which is its last."""

    conditions: tuple[z3.BoolRef, ...]
    events: tuple[Event, ...]
    computed: tuple[z3.BitVecRef, ...]

    @property
    def event(self) -> Event:
        """What the way leads to."""
        return self.events[-1]


@dataclass(frozen=True)
class Code:
    """What the ways through a function depend on: where its parts are, their bytes, its small callees."""

    parts: tuple[tuple[Symbol, bytes], ...]
    return_thunks: tuple[int, ...]
    leaves: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def of(cls, hypervisor: Hypervisor, symbol: Symbol) -> Code:
        """The code of a function of a hypervisor."""
        symbols = (symbol, *cold_parts(hypervisor, symbol))
        parts = tuple((part, hypervisor.read(part.address, part.size)) for part in symbols)
        thunks = tuple(thunk.address for thunk in hypervisor.symbols.get(RETURN_THUNK, ()))
        callees = (hypervisor.symbol_at(target) for target in called_by(parts))
        small = (c for c in callees if c and c.kind == "function" and 0 < c.size <= LARGEST_LEAF)
        return cls(parts, thunks, tuple((c.address, hypervisor.read(c.address, c.size)) for c in small))

    def at(self, address: int) -> bytes | None:
        """The bytes of an instruction at an address, and behind it; none outside the function."""
        for part, content in self.parts:
            if within(part, address):
                return content[address - part.address :][:LONGEST_INSTRUCTION]
        return None


@lru_cache(maxsize=MOST_FUNCTIONS)
def called_by(parts: tuple[tuple[Symbol, bytes], ...]) -> tuple[int, ...]:
    """The functions that a function calls by their addresses."""
    code = (i for part, content in parts for i in decoded(content, part.address))
    targets = (branch_target(i) for i in code if x86.X86_GRP_CALL in i.groups)
    return tuple(sorted({target for target in targets if target is not None}))


@lru_cache(maxsize=MOST_FUNCTIONS)
def kept_by(content: bytes, address: int, return_thunks: tuple[int, ...]) -> frozenset[str]:
    """The caller-saved registers that a function does not write which calls nothing.

    A compiler that knows the callee relies on that (gcc's -fipa-ra, part of -O2). Not seen: what is put in
    the place of its code at boot.
    """
    written, size, ends = {"rax"}, 0, False
    for instruction in decoded(content, address):
        size += instruction.size
        target = branch_target(instruction)
        leads_out = (
            x86.X86_GRP_JUMP in instruction.groups
            and target not in return_thunks
            and (target is None or not address <= target < address + len(content))
        )
        if x86.X86_GRP_CALL in instruction.groups or leads_out:
            return frozenset()
        names = (instruction.reg_name(number_) or "" for number_ in instruction.regs_access()[1])
        written |= {PARTS[name].register for name in names if name in PARTS}
        ends = instruction.mnemonic in {"jmp", *NEVER_ON} or x86.X86_GRP_RET in instruction.groups
    return frozenset(CALLER_SAVED) - written if ends and size == len(content) else frozenset()


class Walker(Machine):
    """Follows the ways through one function."""

    def __init__(self, code: Code) -> None:
        super().__init__([])
        self.code = code
        self._kept_by = {at: kept_by(content, at, code.return_thunks) for at, content in code.leaves}
        self._instructions: dict[int, capstone.CsInsn] = {}
        self._disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._disassembler.detail = True

    def offsets(self) -> list[int]:
        """The offsets that instructions have."""
        operands = (o for i in self._instructions.values() for o in i.operands if o.type == x86.X86_OP_MEM)
        return sorted({0, *(operand.mem.disp & (1 << WORD) - 1 for operand in operands)})

    # -- the ways -------------------------------------------------------------------------------

    def ways(self, start: int, kind: str, callee: int | None = None) -> Iterator[Way]:
        """The ways to events of a kind, to calls of one function only if it is given; the shortest first."""
        registers = {name: Value(z3.BitVec(name, WORD)) for name in GENERAL}
        todo: deque[Step] = deque([Step(start, registers, memory_named(MEMORY))])
        useful = self._leading_to(start, kind, callee)
        visits: dict[int, int] = {}
        for _ in range(MOST_STEPS):
            if not todo:
                return
            step = todo.popleft()
            visits[step.address] = visits.get(step.address, 0) + 1
            if visits[step.address] > MOST_VISITS or (instruction := self._at(step.address)) is None:
                continue
            for after in self._after(step, instruction):
                if kind == BRANCH and len(after.conditions) > len(step.conditions):
                    yield Way(after.conditions, (*after.events, Event(BRANCH, step.address)), after.computed)
                for event in after.events[len(step.events) :]:
                    if event.kind == kind and callee in (None, event.target):
                        yield Way(after.conditions, after.events, after.computed)
                if after.address in useful:
                    todo.append(after)

    def places_of(self, kind: str, callee: int | None = None) -> list[int]:
        """The instructions of the function at which an event of a kind is."""
        found = []
        for part, _ in self.code.parts:
            address = part.address
            while (instruction := self._at(address)) is not None and within(part, address):
                if self._may_be(instruction, kind, callee):
                    found.append(address)
                address += instruction.size
        return found

    def _leading_to(self, start: int, kind: str, callee: int | None) -> set[int]:
        """The instructions from which such an event can be reached."""
        before: dict[int, list[int]] = {}
        wanted, seen, todo = [], {start}, [start]
        while todo:
            address = todo.pop()
            if (instruction := self._at(address)) is None:
                continue
            if self._may_be(instruction, kind, callee):
                wanted.append(address)
            for place in self._follows(instruction):
                before.setdefault(place, []).append(address)
                if place not in seen:
                    seen.add(place)
                    todo.append(place)
        useful = set(wanted)
        while wanted:
            for address in before.get(wanted.pop(), ()):
                if address not in useful:
                    useful.add(address)
                    wanted.append(address)
        return useful

    def _may_be(self, instruction: capstone.CsInsn, kind: str, callee: int | None) -> bool:
        target = branch_target(instruction)
        outside = target is not None and not self._inside(target)
        if kind == CALL:
            called = x86.X86_GRP_CALL in instruction.groups or (instruction.mnemonic == "jmp" and outside)
            return called and callee in (None, target)
        if kind == EXCHANGE:
            return str(instruction.mnemonic).endswith("cmpxchg")
        if kind == COPY:
            return str(instruction.mnemonic) == "rep movsb"
        if kind == RETURN:
            return x86.X86_GRP_RET in instruction.groups or (instruction.mnemonic == "jmp" and outside)
        if kind == BRANCH:
            return x86.X86_GRP_JUMP in instruction.groups
        return any(o.type == x86.X86_OP_MEM and o.access & capstone.CS_AC_WRITE for o in instruction.operands)

    def _follows(self, instruction: capstone.CsInsn) -> list[int]:
        """Where a way may go on behind an instruction."""
        after = instruction.address + instruction.size
        target = branch_target(instruction)
        if instruction.mnemonic in NEVER_ON or x86.X86_GRP_RET in instruction.groups:
            return []
        if x86.X86_GRP_JUMP not in instruction.groups:
            return [after]
        places = [] if instruction.mnemonic == "jmp" else [after]
        return [*places, target] if target is not None and self._inside(target) else places

    def _at(self, address: int) -> capstone.CsInsn | None:
        """The instruction at an address of this function."""
        if address not in self._instructions:
            code = self.code.at(address)
            found = next(self._disassembler.disasm(code, address, 1), None) if code else None
            if found is None:
                return None
            self._instructions[address] = found
        return self._instructions[address]

    def _inside(self, address: int) -> bool:
        return any(within(part, address) for part, _ in self.code.parts)

    # -- one instruction ------------------------------------------------------------------------

    def _after(self, step: Step, instruction: capstone.CsInsn) -> list[Step]:
        mnemonic = instruction.mnemonic.split()[-1]
        following = replace(step, address=instruction.address + instruction.size)
        target = branch_target(instruction)
        groups = instruction.groups
        if x86.X86_GRP_CALL in groups:
            return [self._call(following, target)]
        if x86.X86_GRP_RET in groups:
            return [self._return(step, instruction)]
        if mnemonic == "jmp":
            if target is None:
                return []
            if self._inside(target):
                return [replace(step, address=target)]
            if target in self.code.return_thunks:
                return [self._return(step, instruction)]
            called = self._call(replace(step, address=instruction.address), target)
            return [called, self._return(called, instruction)]
        if x86.X86_GRP_JUMP in groups:
            return self._jump(following, target, mnemonic[1:], instruction) if target is not None else []
        if mnemonic in NEVER_ON:
            return []
        return [self._one(following, instruction, mnemonic)]

    def _jump(self, step: Step, target: int, code: str, instruction: capstone.CsInsn) -> list[Step]:
        try:
            holds = z3.simplify(self._condition(step, code, instruction))
        except Refused:
            holds = z3.Bool(self.name("unknown"))
        ways = []
        for place, condition in ((step.address, z3.simplify(z3.Not(holds))), (target, holds)):
            if z3.is_false(condition) or z3.simplify(z3.Not(condition)).get_id() in _ids(step.conditions):
                continue
            known = z3.is_true(condition) or condition.get_id() in _ids(step.conditions)
            conditions = step.conditions if known else (*step.conditions, condition)
            if not known and not consistent(step.conditions, condition):
                continue
            ways.append(replace(step, address=place, conditions=conditions))
        return ways

    def _call(self, step: Step, target: int | None) -> Step:
        arguments = tuple(step.registers[name].term for name in ARGUMENTS)
        registers = dict(step.registers)
        not_written = self._kept_by.get(target or 0, frozenset())
        for name in CALLER_SAVED:
            if name not in not_written:
                registers[name] = Value(self.fresh(f"{name} of call"))
        frame, left = dict(step.frame), []
        for term in arguments:
            offset = self._frame_offset(step, term)
            if offset is None:
                continue
            frame = {at: kept for at, kept in frame.items() if not offset - 7 <= at < offset + FRAME_OBJECT}
            value = self.fresh("left")
            frame[offset] = 8, Value(value)
            left.append((offset, value))
        event = Event(CALL, step.address, target or 0, arguments, registers["rax"].term, left=tuple(left))
        return replace(step, registers=registers, flags={}, frame=frame, events=(*step.events, event))

    def _return(self, step: Step, instruction: capstone.CsInsn) -> Step:
        event = Event(RETURN, instruction.address, result=step.registers["rax"].term)
        return replace(step, address=0, events=(*step.events, event))

    def _one(self, step: Step, instruction: capstone.CsInsn, mnemonic: str) -> Step:
        """What is no branch. Garbage may make the machine stumble: then the instruction is unknown."""
        modelled: Any = getattr(self, f"_do_{mnemonic}", None)
        try:
            if instruction.prefix[0] in REPEATED and mnemonic == "movsb":
                return self._copy(step, instruction)
            if instruction.prefix[0] in REPEATED and mnemonic != "pause":
                return self._unknown(step, instruction)
            after = modelled(step, instruction) if modelled else self._plain(step, instruction)
        except (Refused, z3.Z3Exception, KeyError, ValueError, IndexError, AttributeError):
            return self._unknown(step, instruction)
        return after if isinstance(after, Step) else self._unknown(step, instruction)

    def _copy(self, step: Step, instruction: capstone.CsInsn) -> Step:
        """Bytes that are copied one by one: to where, from where, how many."""
        arguments = tuple(step.registers[name].term for name in ("rdi", "rsi", "rcx"))
        after = self._unknown(step, instruction)
        return replace(after, events=(*after.events, Event(COPY, instruction.address, arguments=arguments)))

    def _unknown(self, step: Step, instruction: capstone.CsInsn) -> Step:
        """What an instruction that is not modelled leaves: nothing is known of all that it writes."""
        registers = dict(step.registers)
        try:
            written = instruction.regs_access()[1]
        except capstone.CsError:
            written = list(range(1, 300))
        for number_ in written:
            part = PARTS.get(instruction.reg_name(number_) or "")
            if part:
                registers[part.register] = Value(self.fresh(part.register))
        memory = any(
            o.type == x86.X86_OP_MEM and o.access & capstone.CS_AC_WRITE for o in instruction.operands
        )
        frame = {} if memory else step.frame
        return replace(step, registers=registers, flags={}, frame=frame)

    # -- instructions that the machine does not have ----------------------------------------------

    def _do_push(self, step: Step, instruction: capstone.CsInsn) -> State:
        after, value = self._read(step, instruction, instruction.operands[0])
        rsp = simple(after.registers["rsp"].term - 8)
        after = replace(after, registers={**after.registers, "rsp": Value(rsp)})
        offset = self._frame_offset(after, rsp)
        if offset is None or not isinstance(after, Step):
            raise Refused("the stack pointer is not known")
        return self._keep(after, offset, 8, Value(wide(value.term)))

    def _do_pop(self, step: Step, instruction: capstone.CsInsn) -> State:
        rsp = step.registers["rsp"].term
        offset = self._frame_offset(step, rsp)
        if offset is None:
            raise Refused("the stack pointer is not known")
        value = self._read_frame(step, offset, 8)
        after = self._write(step, instruction, instruction.operands[0], value)
        return replace(after, registers={**after.registers, "rsp": Value(simple(rsp + 8))})

    def _do_cmpxchg(self, step: Step, instruction: capstone.CsInsn) -> State:
        place, source = instruction.operands
        address = self._address(step, instruction, place)
        after, value = self._read(step, instruction, source)
        found = self.fresh("found", place.size * 8)
        event = Event(
            EXCHANGE, instruction.address, address=address.term, value=wide(value.term), size=place.size
        )
        registers = {**after.registers, "rax": Value(wide(found))}
        flags = {"z": z3.Bool(self.name("exchanged"))}
        return replace(step, registers=registers, flags=flags, events=(*step.events, event))

    def _do_bt(self, step: Step, instruction: capstone.CsInsn) -> State:
        place, index = instruction.operands
        if place.type == x86.X86_OP_MEM and index.type == x86.X86_OP_REG:
            return self._bit_string(step, instruction)
        after, value = self._read(step, instruction, place)
        after, by = self._read(after, instruction, index)
        width = value.term.size()
        number_ = z3.ZeroExt(WORD - by.term.size(), by.term) if by.term.size() < WORD else by.term
        bit = z3.Extract(0, 0, z3.LShR(value.term, z3.Extract(width - 1, 0, number_ & (width - 1))))
        return replace(after, flags={"c": simple(bit) == 1})

    def _bit_string(self, step: Step, instruction: capstone.CsInsn) -> State:
        """A bit of memory by its number, which reaches beyond the word: the byte that has it is looked at."""
        place, index = instruction.operands
        after, by = self._read(step, instruction, index)
        address = self._address(after, instruction, place).term
        if self._frame_offset(after, address) is not None:
            raise Refused("a bit of the stack frame")
        bit = bit_of(address, signed(wide(by.term), by.term.size()))
        return replace(after, flags={"c": z3.Extract(0, 0, bit) == 1})

    def _changed_bit(self, step: Step, instruction: capstone.CsInsn, how: str) -> State:
        place, index = instruction.operands
        if place.type == x86.X86_OP_MEM and index.type == x86.X86_OP_REG:
            _, by = self._read(step, instruction, index)
            address = self._address(step, instruction, place).term
            first = simple(by.term)
            inside = z3.is_bv_value(first) and first.as_long() < WORD
            if not inside or self._frame_offset(step, address) is not None:
                raise Refused("which word is changed is not known")
            word = loaded(address, 8)
            bit = number(1 << first.as_long())
            changed = {"s": word | bit, "r": word & ~bit, "c": word ^ bit}[how]
            after = self._bit_string(step, instruction)
            store = Store(8, address, simple(changed), instruction.address)
            return replace(self.on_store(self, after, store), flags=after.flags)
        after = self._do_bt(step, instruction)
        flags = after.flags
        after, value = self._read(after, instruction, instruction.operands[0])
        after, index = self._read(after, instruction, instruction.operands[1])
        width = value.term.size()
        by = z3.ZeroExt(width - index.term.size(), index.term) if index.term.size() < width else index.term
        bit = number(1, width) << (by & (width - 1))
        changed = {"s": value.term | bit, "r": value.term & ~bit, "c": value.term ^ bit}[how]
        after = self._write(after, instruction, instruction.operands[0], Value(simple(changed)))
        return replace(after, flags=flags)

    def _do_bts(self, step: Step, instruction: capstone.CsInsn) -> State:
        return self._changed_bit(step, instruction, "s")

    def _do_btr(self, step: Step, instruction: capstone.CsInsn) -> State:
        return self._changed_bit(step, instruction, "r")

    def _do_btc(self, step: Step, instruction: capstone.CsInsn) -> State:
        return self._changed_bit(step, instruction, "c")

    def _do_rcr(self, step: Step, instruction: capstone.CsInsn) -> State:
        after, value = self._read(step, instruction, instruction.operands[0])
        if instruction.operands[1].imm != 1 or "c" not in after.flags:
            raise Refused("the carry is not known")
        width = value.term.size()
        top = z3.If(after.flags["c"], number(1 << (width - 1), width), number(0, width))
        after = self._write(
            after, instruction, instruction.operands[0], Value(simple(z3.LShR(value.term, 1) | top))
        )
        return replace(after, flags={})

    def _do_not(self, step: Step, instruction: capstone.CsInsn) -> State:
        after, value = self._read(step, instruction, instruction.operands[0])
        return self._write(after, instruction, instruction.operands[0], Value(simple(~value.term)))

    def _do_neg(self, step: Step, instruction: capstone.CsInsn) -> State:
        after, value = self._read(step, instruction, instruction.operands[0])
        term = simple(-value.term)
        sign = term.size() - 1
        flags = {"z": term == 0, "c": value.term != 0, "s": z3.Extract(sign, sign, term) == 1}
        after = self._write(after, instruction, instruction.operands[0], Value(term))
        return replace(after, flags=flags)

    def _do_inc(self, step: Step, instruction: capstone.CsInsn) -> State:
        return self._moved_by(step, instruction, 1)

    def _do_dec(self, step: Step, instruction: capstone.CsInsn) -> State:
        return self._moved_by(step, instruction, -1)

    def _moved_by(self, step: Step, instruction: capstone.CsInsn, by: int) -> State:
        after, value = self._read(step, instruction, instruction.operands[0])
        term = simple(value.term + by)
        sign = term.size() - 1
        flags = {"z": term == 0, "s": z3.Extract(sign, sign, term) == 1}
        after = self._write(after, instruction, instruction.operands[0], Value(term))
        return replace(after, flags=flags)

    def _do_imul(self, step: Step, instruction: capstone.CsInsn) -> State:
        operands = instruction.operands
        if len(operands) < 2:
            raise Refused("a product of 128 bits")
        after, left = self._read(step, instruction, operands[-2])
        after, right = self._read(after, instruction, operands[-1])
        width = left.term.size()
        by = z3.SignExt(width - right.term.size(), right.term) if right.term.size() < width else right.term
        after = self._write(after, instruction, operands[0], Value(simple(left.term * by)))
        return replace(after, flags={})

    def _do_cdqe(self, step: Step, instruction: capstone.CsInsn) -> State:
        low = z3.Extract(31, 0, step.registers["rax"].term)
        registers = {**step.registers, "rax": Value(simple(z3.SignExt(32, low)))}
        return replace(step, registers=registers)

    # -- what is written ----------------------------------------------------------------------------

    def on_store(self, machine: Machine, state: State, store: Store) -> State:
        """A store to memory is an event, and changes nothing: memory has no time."""
        assert isinstance(state, Step)
        locked = self._instructions[store.at].prefix[0] == LOCK
        event = Event(
            STORE, store.at, address=store.address, value=wide(store.value), size=store.size, locked=locked
        )
        return replace(state, stores=(), events=(*state.events, event))

    def _write(self, state: State, instruction: capstone.CsInsn, operand: x86.X86Op, value: Value) -> State:
        assert isinstance(state, Step)
        if operand.type == x86.X86_OP_REG:
            part = PARTS.get(instruction.reg_name(operand.reg))
            if part and part.register == "rsp":
                if part.width != WORD:
                    raise Refused("part of the stack pointer")
                return replace(state, registers={**state.registers, "rsp": Value(simple(value.term))})
            after = super()._write(state, instruction, operand, value)
            assert part and isinstance(after, Step)
            return replace(after, computed=(*after.computed, after.registers[part.register].term))
        offset = self._frame_offset(state, self._address(state, instruction, operand).term)
        if offset is not None:
            return self._keep(state, offset, operand.size, value)
        return super()._write(state, instruction, operand, value)

    def _keep(self, step: Step, offset: int, size: int, value: Value) -> Step:
        """Put a value into the stack frame."""
        others = {
            at: kept for at, kept in step.frame.items() if at + kept[0] <= offset or offset + size <= at
        }
        return replace(step, frame={**others, offset: (size, value)})

    def _read_frame(self, state: State, offset: int, size: int) -> Value:
        """What was put into the stack frame on this way; what was not is unknown."""
        for start, (width, value) in state.frame.items():
            if start <= offset and offset + size <= start + width:
                first = 8 * (offset - start)
                return Value(simple(z3.Extract(first + 8 * size - 1, first, value.term)))
        return Value(self.fresh("frame", size * 8))

    # -- operands: the stack pointer moves ----------------------------------------------------------

    def _arithmetic(self, state: State, instruction: capstone.CsInsn) -> State:
        """As the machine does it; the low bits of the stack pointer set give a value of its own."""
        operands = instruction.operands
        if instruction.mnemonic == "or" and operands[1].type == x86.X86_OP_IMM:
            _, value = self._read(state, instruction, operands[0])
            mask = operands[1].imm
            if mask > 0 and not mask & (mask + 1) and self._frame_offset(state, value.term) is not None:
                return self._write(state, instruction, operands[0], Value(stack_end(mask)))
        return super()._arithmetic(state, instruction)

    def _frame_offset(self, state: State, address: z3.BitVecRef) -> int | None:
        offset = simple(address - z3.BitVec("rsp", WORD))
        return offset.as_signed_long() if z3.is_bv_value(offset) else None


def within(symbol: Symbol, address: int) -> bool:
    """Whether an address is in a symbol."""
    return symbol.address <= address < symbol.address + symbol.size


def cold_parts(hypervisor: Hypervisor, symbol: Symbol) -> list[Symbol]:
    """What the compiler has put elsewhere of a function, as it is hardly ever needed."""
    return [
        part
        for name in (f"{symbol.name}.cold", f"{symbol.name}.cold.0")
        for part in hypervisor.symbols.get(name, [])
        if part.kind == "function"
    ]


def _ids(terms: tuple[z3.BoolRef, ...]) -> set[int]:
    return {term.get_id() for term in terms}


def consistent(conditions: tuple[z3.BoolRef, ...], another: z3.BoolRef) -> bool:
    """Whether one more condition may hold: only those are looked at that are about the same values."""
    near, about = [], places(another)
    rest = list(conditions)
    while found := [c for c in rest if places(c) & about]:
        near += found
        about = about.union(*map(places, found))
        rest = [c for c in rest if not any(c.eq(f) for f in found)]
    return not near or satisfiable((*near, another), in_doubt=False)


# By the numbers that z3 gives terms, and the terms, which keep their numbers.
_places: dict[int, tuple[z3.ExprRef, frozenset[str]]] = {}


def places(term: z3.ExprRef) -> frozenset[str]:
    """The names in a term, and the addresses in memory: what it is about."""
    known = _places.get(term.get_id())
    if known:
        return known[1]
    found: frozenset[str] = frozenset()
    if z3.is_const(term):
        if term.decl().kind() == z3.Z3_OP_UNINTERPRETED and not z3.is_array(term):
            found = frozenset({str(term)})
    elif z3.is_select(term):
        inside = places(term.arg(1))
        found = frozenset({f"[{term.arg(1).sexpr()}]", *(n for n in inside if n.startswith(UNKNOWN))})
    else:
        found = found.union(*map(places, term.children()))
    if len(_places) > MOST_KEPT:
        _places.clear()
    _places[term.get_id()] = term, found
    return found
