# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs a few of the processor's instructions on terms instead of numbers, along every path.

Invariant: what is not modelled is refused or unknown, never guessed. An unknown value is a fresh symbol,
of which nothing can be proven.

Two assumptions, those of the compiler that made the code: a callee keeps the callee-saved registers and its
caller's stack frame, and no pointer to other data points into the stack frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import capstone
import z3
from capstone import x86

from layout_checker.report import Refused

from .flow import RETURN_THUNK, Function, branch_target
from .registers import CALLER_SAVED, GENERAL, PARTS
from .solver import satisfiable

MOST_STEPS = 20_000
NOTHING = {"nop", "lfence", "pause", "endbr64"}
# Condition code: flags that it looks at, and how.
CONDITIONS: dict[str, Callable[[dict[str, z3.BoolRef]], z3.BoolRef]] = {
    "e": lambda f: f["z"],
    "b": lambda f: f["c"],
    "be": lambda f: z3.Or(f["c"], f["z"]),
    "s": lambda f: f["s"],
    "l": lambda f: f["s"] != f["o"],
    "le": lambda f: z3.Or(f["z"], f["s"] != f["o"]),
}
OPPOSITES = {"ne": "e", "ae": "b", "a": "be", "ns": "s", "ge": "l", "g": "le"}

Tags = frozenset[str]
NO_TAGS: Tags = frozenset()
# A value that comes from this CPU's own area at the top of its stack, or from where that points.
CPU = "cpu"
STACK = "stack"
MEMORY = "memory"
AFTER = "after"


def number(value: int, width: int = 64) -> z3.BitVecRef:
    """A constant."""
    return z3.BitVecVal(value, width)


def memory_named(name: str) -> z3.ArrayRef:
    """All bytes of memory."""
    return z3.Array(name, z3.BitVecSort(64), z3.BitVecSort(8))


def simple(term: z3.BitVecRef) -> z3.BitVecRef:
    """The same value in a normal form."""
    return z3.simplify(term)


@dataclass(frozen=True)
class Value:
    """A term and where it came from."""

    term: z3.BitVecRef
    tags: Tags = NO_TAGS


@dataclass(frozen=True)
class Load:
    """A load from other memory than the stack frame."""

    size: int
    address: z3.BitVecRef
    instruction: capstone.CsInsn


@dataclass(frozen=True)
class Store:
    """A store to other memory than the stack frame."""

    size: int
    address: z3.BitVecRef
    value: z3.BitVecRef
    at: int


@dataclass(frozen=True)
class State:
    """What is known at one point of a path."""

    address: int
    registers: dict[str, Value]
    memory: z3.ArrayRef
    conditions: tuple[z3.BoolRef, ...] = ()
    flags: dict[str, z3.BoolRef] = field(default_factory=dict)
    flag_tags: Tags = NO_TAGS
    frame: dict[int, tuple[int, Value]] = field(default_factory=dict)
    loads: tuple[Load, ...] = ()
    stores: tuple[Store, ...] = ()
    returns: tuple[int, ...] = ()
    decided_by: Tags = NO_TAGS  # the tags of the last condition that had two outcomes
    calls: tuple[str, ...] = ()

    def term(self, register: str) -> z3.BitVecRef:
        """The value of a whole register."""
        return self.registers[register].term


class Machine:
    """Explores the paths of a function from one address on."""

    def __init__(self, callees: list[Function]) -> None:
        self.callees = callees
        self._named = 0

    def fresh(self, name: str, width: int = 64) -> z3.BitVecRef:
        """A value of which nothing is known."""
        return z3.BitVec(self.name(name), width)

    def name(self, name: str) -> str:
        """A name that nothing else has."""
        self._named += 1
        return f"{name}!{self._named}"

    def start(self, address: int, conditions: Iterable[z3.BoolRef] = ()) -> State:
        """A state in which every register and all memory is unknown, under its own name."""
        registers = {name: Value(z3.BitVec(name, 64), frozenset({name})) for name in GENERAL}
        registers["rsp"] = Value(z3.BitVec("rsp", 64), frozenset({STACK}))
        memory = memory_named(MEMORY)
        return State(address, registers, memory, tuple(conditions))

    def explore(
        self,
        start: State,
        function: Function,
        body: set[int],
        stop: int,
        on_call: Callable[[Machine, State, str], State],
        on_store: Callable[[Machine, State, Store], State],
    ) -> tuple[list[State], list[State]]:
        """Every path from start: the states that came back to `stop`, and those that left the body."""
        self.on_call, self.on_store = on_call, on_store
        back: list[State] = []
        left: list[State] = []
        todo = self._step(start, function)
        for _ in range(MOST_STEPS):
            if not todo:
                return back, left
            state = todo.pop()
            if not state.returns and state.address == stop:
                back.append(state)
            elif not state.returns and state.address not in body:
                left.append(state)
            else:
                todo += self._step(state, function)
        raise Refused(f"{function.name(start.address)}: too many paths to follow")

    # -- one instruction ------------------------------------------------------------------------

    def _code(self, address: int, function: Function) -> capstone.CsInsn:
        for known in (function, *self.callees):
            if address in known.code:
                return known.code[address]
        raise Refused(f"{function.symbol.name}: a path leads to {address:#x}, outside of what is known")

    def _step(self, state: State, function: Function) -> list[State]:
        instruction = self._code(state.address, function)
        mnemonic = instruction.mnemonic
        after = state.address + instruction.size
        following = replace(state, address=after)
        target = branch_target(instruction)
        if x86.X86_GRP_CALL in instruction.groups:
            callee = function.hypervisor.function_at(target) if target is not None else ""
            called = replace(following, calls=(*state.calls, callee))
            return [self.on_call(self, called, callee)]
        if mnemonic == "jmp" and target is not None:
            if function.hypervisor.function_at(target) == RETURN_THUNK and state.returns:
                return [replace(state, address=state.returns[-1], returns=state.returns[:-1])]
            return [replace(state, address=target)]
        if x86.X86_GRP_JUMP in instruction.groups and target is not None:
            return self._branch(following, target, self._condition(state, mnemonic[1:], instruction))
        return [self._plain(following, instruction)]

    def _branch(self, state: State, target: int, condition: z3.BoolRef) -> list[State]:
        condition = z3.simplify(condition)
        ways = []
        for place, holds in ((state.address, z3.Not(condition)), (target, condition)):
            if z3.is_false(z3.simplify(holds)) or not self.possible(state.conditions, holds):
                continue
            ways.append(replace(state, address=place, conditions=(*state.conditions, holds)))
        if len(ways) == 2:
            ways = [replace(way, decided_by=state.flag_tags) for way in ways]
        return ways

    def possible(self, conditions: Iterable[z3.BoolRef], claim: z3.BoolRef) -> bool:
        """Whether a claim may hold together with the conditions."""
        return satisfiable((*conditions, claim))

    def proves(self, state: State, claim: z3.BoolRef) -> bool:
        """Whether a claim follows from the conditions of a path."""
        claim = z3.simplify(claim)
        return z3.is_true(claim) or not self.possible(state.conditions, z3.Not(claim))

    def _condition(self, state: State, code: str, instruction: capstone.CsInsn) -> z3.BoolRef:
        try:
            if code in OPPOSITES:
                return z3.Not(CONDITIONS[OPPOSITES[code]](state.flags))
            return CONDITIONS[code](state.flags)
        except KeyError:
            raise Refused(f"{text(instruction)}: a condition that is not understood") from None

    def _plain(self, state: State, instruction: capstone.CsInsn) -> State:
        mnemonic, operands = instruction.mnemonic, instruction.operands
        if mnemonic in NOTHING:
            return state
        if mnemonic.startswith("set"):
            holds = self._condition(state, mnemonic[3:], instruction)
            value = Value(z3.If(holds, number(1, 8), number(0, 8)), state.flag_tags)
            return self._write(state, instruction, operands[0], value)
        if mnemonic.startswith("cmov"):
            holds = self._condition(state, mnemonic[4:], instruction)
            state, new = self._read(state, instruction, operands[1])
            state, old = self._read(state, instruction, operands[0])
            value = Value(z3.If(holds, new.term, old.term), new.tags | old.tags | state.flag_tags)
            return self._write(state, instruction, operands[0], value)
        if mnemonic == "lea":
            value = self._address(state, instruction, operands[1])
            term = z3.Extract(operands[0].size * 8 - 1, 0, value.term)
            return self._write(state, instruction, operands[0], Value(term, value.tags))
        if mnemonic in ("mov", "movabs", "movzx", "movsxd", "movsx"):
            state, value = self._read(state, instruction, operands[1])
            wider = operands[0].size * 8 - value.term.size()
            extend = z3.SignExt if mnemonic.startswith("movs") else z3.ZeroExt
            term = extend(wider, value.term) if wider > 0 else value.term
            return self._write(state, instruction, operands[0], Value(term, value.tags))
        if mnemonic in ("add", "sub", "sbb", "and", "or", "xor", "test", "cmp"):
            return self._arithmetic(state, instruction)
        if mnemonic in ("shl", "shr", "sar"):
            return self._shift(state, instruction)
        raise Refused(f"{text(instruction)}: an instruction that is not understood")

    def _arithmetic(self, state: State, instruction: capstone.CsInsn) -> State:
        mnemonic, operands = instruction.mnemonic, instruction.operands
        state, left = self._read(state, instruction, operands[0])
        state, right = self._read(state, instruction, operands[1])
        a, b = left.term, right.term
        width = a.size()
        if b.size() < width:
            b = z3.SignExt(width - b.size(), b)
        tags = left.tags | right.tags
        sign = width - 1
        carry, overflow = z3.BoolVal(False), z3.BoolVal(False)
        if mnemonic in ("sub", "cmp"):
            result = a - b
            carry = z3.ULT(a, b)
            overflow = z3.Extract(sign, sign, (a ^ b) & (a ^ result)) == 1
        elif mnemonic == "add":
            result = a + b
            carry = z3.ULT(result, a)
            overflow = z3.Extract(sign, sign, ~(a ^ b) & (a ^ result)) == 1
        elif mnemonic == "sbb":
            if "c" not in state.flags:
                raise Refused(f"{text(instruction)}: the carry is not known")
            result = a - b - z3.If(state.flags["c"], number(1, width), number(0, width))
            tags |= state.flag_tags
        elif mnemonic in ("and", "test"):
            result = a & b
        elif mnemonic == "or":
            result = a | b
        else:
            result = a ^ b
        result = simple(result)
        flags = {"z": result == 0, "s": z3.Extract(sign, sign, result) == 1, "c": carry, "o": overflow}
        if mnemonic == "sbb":
            flags = {}
        state = replace(state, flags=flags, flag_tags=tags)
        if mnemonic in ("cmp", "test"):
            return state
        return self._write(state, instruction, operands[0], Value(result, tags))

    def _shift(self, state: State, instruction: capstone.CsInsn) -> State:
        mnemonic, operands = instruction.mnemonic, instruction.operands
        state, value = self._read(state, instruction, operands[0])
        state, count = self._read(state, instruction, operands[1])
        width = value.term.size()
        by = count.term & (63 if width == 64 else 31)
        by = z3.ZeroExt(width - by.size(), by) if by.size() < width else z3.Extract(width - 1, 0, by)
        shifted = {
            "shl": lambda: value.term << by,
            "shr": lambda: z3.LShR(value.term, by),
            "sar": lambda: value.term >> by,
        }[mnemonic]()
        tags = value.tags | count.tags
        known = z3.is_bv_value(z3.simplify(by)) and z3.simplify(by).as_long() != 0
        result = simple(shifted)
        top = z3.Extract(width - 1, width - 1, result) == 1
        state = replace(state, flags={"z": result == 0, "s": top} if known else {}, flag_tags=tags)
        return self._write(state, instruction, operands[0], Value(result, tags))

    # -- operands -------------------------------------------------------------------------------

    def _address(self, state: State, instruction: capstone.CsInsn, operand: x86.X86Op) -> Value:
        memory = operand.mem
        if memory.segment:
            raise Refused(f"{text(instruction)}: a segment")
        term, tags = number(memory.disp & (1 << 64) - 1), NO_TAGS
        for register, scale in ((memory.base, 1), (memory.index, memory.scale)):
            if register == x86.X86_REG_RIP:
                term += instruction.address + instruction.size
            elif register:
                part = PARTS[instruction.reg_name(register)]
                if part.width != 64:
                    raise Refused(f"{text(instruction)}: an address of {part.width} bits")
                value = state.registers[part.register]
                term, tags = term + value.term * scale, tags | value.tags
        return Value(simple(term), tags)

    def _frame_offset(self, state: State, address: z3.BitVecRef) -> int | None:
        offset = simple(address - z3.BitVec("rsp", 64))
        return offset.as_signed_long() if z3.is_bv_value(offset) else None

    def _read(self, state: State, instruction: capstone.CsInsn, operand: x86.X86Op) -> tuple[State, Value]:
        width = operand.size * 8
        if operand.type == x86.X86_OP_IMM:
            return state, Value(number(operand.imm, width))
        if operand.type == x86.X86_OP_REG:
            part = PARTS.get(instruction.reg_name(operand.reg))
            if not part:
                raise Refused(f"{text(instruction)}: a register that is not understood")
            value = state.registers[part.register]
            term = z3.Extract(part.low + part.width - 1, part.low, value.term)
            return state, Value(simple(term), value.tags)
        address = self._address(state, instruction, operand)
        offset = self._frame_offset(state, address.term)
        if offset is not None:
            return state, self._read_frame(state, offset, operand.size)
        tags = frozenset({CPU if {STACK, CPU} & address.tags else MEMORY})
        parts = [z3.Select(state.memory, simple(address.term + byte)) for byte in range(operand.size)]
        term = z3.Concat(*reversed(parts)) if len(parts) > 1 else parts[0]
        load = Load(operand.size, address.term, instruction)
        return replace(state, loads=(*state.loads, load)), Value(term, tags)

    def _read_frame(self, state: State, offset: int, size: int) -> Value:
        for start, (width, value) in state.frame.items():
            if start == offset and size <= width:
                return Value(simple(z3.Extract(size * 8 - 1, 0, value.term)), value.tags)
            if start < offset + size and offset < start + width:
                return Value(self.fresh("frame", size * 8))
        return Value(z3.BitVec(f"frame[{offset}:{size}]", size * 8))

    def _write(self, state: State, instruction: capstone.CsInsn, operand: x86.X86Op, value: Value) -> State:
        if operand.type == x86.X86_OP_REG:
            part = PARTS.get(instruction.reg_name(operand.reg))
            if not part or part.register == "rsp":
                raise Refused(f"{text(instruction)}: a register that is not understood")
            old = state.registers[part.register]
            if part.width >= 32:
                term, tags = z3.ZeroExt(64 - part.width, value.term), value.tags
            else:
                pieces = [z3.Extract(63, part.low + part.width, old.term), value.term]
                if part.low:
                    pieces.append(z3.Extract(part.low - 1, 0, old.term))
                term, tags = z3.Concat(*pieces), old.tags | value.tags
            return replace(state, registers={**state.registers, part.register: Value(simple(term), tags)})
        address = self._address(state, instruction, operand)
        offset = self._frame_offset(state, address.term)
        if offset is not None:
            overlapped = {
                start: kept
                for start, kept in state.frame.items()
                if start + kept[0] <= offset or offset + operand.size <= start
            }
            if len(state.frame) - len(overlapped) > 1:
                raise Refused(f"{text(instruction)}: spans two values of the stack frame")
            return replace(state, frame={**overlapped, offset: (operand.size, value)})
        store = Store(operand.size, address.term, value.term, instruction.address)
        return self.on_store(self, replace(state, stores=(*state.stores, store)), store)


def after_call(machine: Machine, state: State, name: str, tags: Tags = NO_TAGS) -> State:
    """Registers as a callee may leave them."""
    registers = dict(state.registers)
    for register in CALLER_SAVED:
        registers[register] = Value(machine.fresh(f"{register} {AFTER} {name}"), tags)
    return replace(state, registers=registers, flags={}, flag_tags=NO_TAGS)


def any_memory(machine: Machine, state: State) -> State:
    """Memory of which nothing is known any more, the stack frame excepted."""
    return replace(state, memory=memory_named(machine.name("memory")))


def text(instruction: capstone.CsInsn) -> str:
    """An instruction for a reader."""
    return f"{instruction.mnemonic} {instruction.op_str} at {instruction.address:#x}".replace("  ", " ")
