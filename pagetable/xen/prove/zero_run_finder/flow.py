# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A function as a graph: its loops, and what is still needed where.

What is needed ("live") is computed so that doubt makes it needed: a register that is written in part stays
needed, a jump out of the function needs everything, and a call every register that can carry an argument,
unless the callee is seen to be called with that register as another callee left it: a compiler does not do
that with an argument. Functions are taken to return in rax alone.

A call overwrites rax and the flags, and nothing else that could be relied on: a compiler that knows the
callee keeps values in the other caller-saved registers if the callee leaves them alone (gcc's -fipa-ra, part
of -O2). So only what a callee's own code writes is taken for left by it, if the callee is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property

import capstone
from capstone import x86

from layout_checker.hypervisor import UDB, Hypervisor, Symbol
from layout_checker.report import Refused

from .registers import ARGUMENTS, CALLEE_SAVED, CALLER_SAVED, GENERAL, PARTS

THUNK = "__x86_indirect_thunk_"
RETURN_THUNK = "__x86_return_thunk"
FLAGS = "flags"
# These write all flags that a condition can look at; of the others, not all do, or not always.
SET_FLAGS = {"add", "and", "cmp", "neg", "or", "sub", "test", "xor"}
NEVER_BACK = {"ud2", "int3"}
INT3 = b"\xcc"
# Variables: "rax.low", "rax.high" (32 bits each), "flags", and "[8]", the byte at rsp + 8.
Variable = str


def halves(name: str) -> set[Variable]:
    """The variables that the value of a register is in."""
    part = PARTS[name]
    return {f"{part.register}.low"} | ({f"{part.register}.high"} if part.width == 64 else set())


def variables(names: tuple[str, ...]) -> set[Variable]:
    """The variables that the values of some registers are in."""
    return {half for name in names for half in halves(name)}


class Program:
    """The functions of the hypervisor, each analysed on first use."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self.hypervisor = hypervisor
        self._functions: dict[str, Function] = {}

    def function(self, name: str) -> Function:
        """A function by its name, the only one of that name."""
        if name not in self._functions:
            symbol = self.hypervisor.symbol(name)
            if symbol.kind != "function" or not symbol.size:
                raise Refused(f"{name} is not a function with a size")
            self._functions[name] = Function(self.hypervisor, symbol)
        return self._functions[name]


def decoded(code: bytes, address: int) -> Iterator[capstone.CsInsn]:
    """Instructions, as far as they are known; UDB, by which Xen marks bugs, as int3: a path ends there."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    at = 0
    while at < len(code):
        for instruction in disassembler.disasm(code[at:], address + at):
            at = instruction.address + instruction.size - address
            yield instruction
        if code[at : at + 1] != bytes([UDB]):
            return
        code = code[:at] + INT3 + code[at + 1 :]


class Function:
    """The instructions of one function of the hypervisor and the paths between them."""

    def __init__(self, hypervisor: Hypervisor, symbol: Symbol) -> None:
        self.hypervisor = hypervisor
        self.symbol = symbol
        self._written: dict[str, set[Variable]] = {}
        code = hypervisor.read(symbol.address, symbol.size)
        self.code: dict[int, capstone.CsInsn] = {i.address: i for i in decoded(code, symbol.address)}
        if sum(instruction.size for instruction in self.code.values()) != symbol.size:
            raise Refused(f"{symbol.name} is not a whole number of instructions")
        self.follows: dict[int, tuple[int, ...]] = {a: self._follows(i) for a, i in self.code.items()}
        self.precedes: dict[int, list[int]] = {address: [] for address in self.code}
        for address, following in self.follows.items():
            for successor in following:
                self.precedes[successor].append(address)

    def _follows(self, instruction: capstone.CsInsn) -> tuple[int, ...]:
        after = instruction.address + instruction.size
        target = branch_target(instruction)
        if instruction.mnemonic in NEVER_BACK or x86.X86_GRP_RET in instruction.groups:
            places = []
        elif x86.X86_GRP_JUMP not in instruction.groups:
            places = [after]
        elif target is None:
            raise Refused(f"{self.symbol.name} has an indirect jump at {instruction.address:#x}")
        else:
            places = [target] if instruction.mnemonic == "jmp" else [after, target]
        inside = range(self.symbol.address, self.symbol.address + self.symbol.size)
        for place in places:
            if place in inside and place not in self.code:
                raise Refused(f"a jump at {instruction.address:#x} leads into an instruction")
        return tuple(place for place in places if place in inside)

    def name(self, address: int) -> str:
        """An address as function+offset."""
        return f"{self.symbol.name}+{address - self.symbol.address:#x}"

    def callee(self, address: int) -> str | None:
        """The function that is called at this address, if it is a direct call."""
        if address not in self.calls:
            return None
        target = self.calls[address]
        return self.hypervisor.function_at(target) if target is not None else ""

    @cached_property
    def calls(self) -> dict[int, int | None]:
        """Where each call leads; None, if its target is not in the code."""
        return {a: branch_target(i) for a, i in self.code.items() if x86.X86_GRP_CALL in i.groups}

    def reaching(self, targets: set[int], without: set[int]) -> set[int]:
        """Addresses from which a path leads to one of the targets, past none of the others."""
        seen = set(targets)
        todo = list(targets - without)
        while todo:
            for before in self.precedes[todo.pop()]:
                if before not in seen and before not in without:
                    seen.add(before)
                    todo.append(before)
        return seen

    def reached(self, start: int, without: set[int]) -> set[int]:
        """Addresses that a path from start leads to, past none of the others."""
        seen = {start} - without
        todo = list(seen)
        while todo:
            for after in self.follows[todo.pop()]:
                if after not in seen and after not in without:
                    seen.add(after)
                    todo.append(after)
        return seen

    def block_start(self, address: int) -> int:
        """Where the straight run of instructions begins that an address is in."""
        while len(before := self.precedes[address]) == 1 and len(self.follows[before[0]]) == 1:
            (address,) = before
        return address

    @cached_property
    def loops(self) -> dict[int, set[int]]:
        """Head to body of each natural loop: a jump back to an address that every path to it passes."""
        found: dict[int, set[int]] = {}
        for head, origins in self.precedes.items():
            if len(origins) < 2:
                continue
            others = self.reached(self.symbol.address, {head})
            for origin in origins:
                if origin not in others:
                    body = self.reaching({origin}, {head}) | {head}
                    found[head] = found.get(head, set()) | body
        return found

    # -- what is needed where -------------------------------------------------------------------

    def _reads_writes(self, instruction: capstone.CsInsn) -> tuple[set[Variable], set[Variable]]:
        reads: set[Variable] = set()
        writes: set[Variable] = set()
        mnemonic = instruction.mnemonic.split()[-1]
        callee = self.callee(instruction.address)
        if callee is not None:
            reads = variables((*ARGUMENTS, "rsp"))  # no vector registers: al is no argument
            return reads, variables(("rax",)) | {FLAGS}
        used, written = instruction.regs_access()
        for number in used:
            name = instruction.reg_name(number)
            if name in PARTS:
                reads |= halves(name)
        for number in written:
            name = instruction.reg_name(number)
            if name in PARTS and PARTS[name].width >= 32:
                register = PARTS[name].register
                writes |= {f"{register}.low", f"{register}.high"}
        operands = instruction.operands
        if mnemonic in ("xor", "sub") and same_register(*operands):  # whatever it was, it is 0 now
            reads -= halves(instruction.reg_name(operands[0].reg))
        if mnemonic in SET_FLAGS:
            writes.add(FLAGS)
        if instruction.eflags and any(instruction.eflags & bit for bit in TESTED):
            reads.add(FLAGS)
        for operand in operands:
            slot = stack_bytes(instruction, operand)
            if operand.access & capstone.CS_AC_READ:
                reads |= slot
            elif operand.access & capstone.CS_AC_WRITE:
                writes |= slot
        return reads, writes

    @cached_property
    def _effects(self) -> dict[int, tuple[set[Variable], set[Variable]]]:
        return {address: self._reads_writes(i) for address, i in self.code.items()}

    def effects(self, address: int) -> tuple[set[Variable], set[Variable]]:
        """What an instruction reads and writes."""
        return self._effects[address]

    @cached_property
    def _unread(self) -> dict[str, set[Variable]]:
        """For each callee, what some call of it finds as another callee left it."""
        stale: dict[int, set[Variable]] = {address: set() for address in self.code}
        todo = set(self.code)
        while todo:
            address = todo.pop()
            callee = self.callee(address)
            after = stale[address] - self._effects[address][1]
            if callee is not None:
                after |= self._left_by(callee)
            for place in self.follows[address]:
                if not after <= stale[place]:
                    stale[place] = stale[place] | after
                    todo.add(place)
        unread: dict[str, set[Variable]] = {}
        for address in self.code:
            if callee := self.callee(address):
                unread.setdefault(callee, set()).update(stale[address])
        return unread

    def _left_by(self, callee: str) -> set[Variable]:
        """What a callee overwrites for its own purposes, rax excluded; if it is not known, everything."""
        everything = variables(CALLER_SAVED) - halves("rax")
        if not callee or callee.startswith(THUNK):
            return everything
        if callee not in self._written:
            self._written[callee] = set()  # in case of doubt, nothing
            with contextlib.suppress(Refused):
                function = Function(self.hypervisor, self.hypervisor.symbol(callee))
                found = (function._effects[address][1] for address in function.code)
                self._written[callee] = set().union(*found) & everything
        return self._written[callee]

    @cached_property
    def live(self) -> dict[int, set[Variable]]:
        """For each address, the variables that something on a path from there reads before it is written."""
        effects = dict(self._effects)
        for callee, unread in self._unread.items():
            for address in self.code:
                if self.callee(address) == callee:
                    effects[address] = (effects[address][0] - unread, effects[address][1])
        everything = variables(GENERAL) | {FLAGS}
        returned = variables((*CALLEE_SAVED, "rax", "rsp"))
        live: dict[int, set[Variable]] = {address: set() for address in self.code}
        todo = set(self.code)
        while todo:
            address = todo.pop()
            instruction = self.code[address]
            after = set().union(*(live[place] for place in self.follows[address]))
            if self._returns(instruction):
                after |= returned
            elif not self.follows[address] and instruction.mnemonic not in NEVER_BACK:
                after |= everything
            reads, writes = effects[address]
            before = reads | (after - writes)
            if before != live[address]:
                live[address] = before
                todo |= set(self.precedes[address])
        return live

    def _returns(self, instruction: capstone.CsInsn) -> bool:
        target = branch_target(instruction)
        return x86.X86_GRP_RET in instruction.groups or (
            target is not None and self.hypervisor.function_at(target) == RETURN_THUNK
        )

    @cached_property
    def frame_stays_private(self) -> bool:
        """Whether no address of the stack frame is taken, other than to find the top of the stack."""
        for address, instruction in self.code.items():
            operands = instruction.operands
            if instruction.mnemonic == "lea" and operands[1].mem.base == x86.X86_REG_RSP:
                return False
            copied = instruction.mnemonic == "mov" and operands[1].type == x86.X86_OP_REG
            if copied and operands[1].reg == x86.X86_REG_RSP and not self._masked(address, operands[0].reg):
                return False
        return True

    def _masked(self, address: int, register: int) -> bool:
        """Whether the first thing done with this register is to set the low bits."""
        for _ in range(4):
            (address,) = self.follows[address]
            instruction = self.code[address]
            if register in instruction.regs_access()[0]:
                operands = instruction.operands
                return bool(instruction.mnemonic == "or" and operands[1].type == x86.X86_OP_IMM)
        return False


TESTED = [getattr(x86, name) for name in dir(x86) if name.startswith("X86_EFLAGS_TEST_")]


def branch_target(instruction: capstone.CsInsn) -> int | None:
    """Where a direct jump or call leads."""
    branches = {x86.X86_GRP_JUMP, x86.X86_GRP_CALL} & set(instruction.groups)
    if branches and instruction.operands[0].type == x86.X86_OP_IMM:
        return int(instruction.operands[0].imm) & (1 << 64) - 1
    return None


def same_register(one: x86.X86Op, other: x86.X86Op) -> bool:
    """Whether two operands are one register."""
    return bool(one.type == other.type == x86.X86_OP_REG and one.reg == other.reg)


def stack_bytes(instruction: capstone.CsInsn, operand: x86.X86Op) -> set[Variable]:
    """The bytes of the stack frame that an operand is."""
    if operand.type != x86.X86_OP_MEM or operand.mem.base != x86.X86_REG_RSP or operand.mem.index:
        return set()
    return {f"[{operand.mem.disp + byte}]" for byte in range(operand.size)}
