# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Finds the loop over the entries of each level's tables, and proves what a trampoline relies on.

A loop is known by the function it is in and the function it calls for an entry; everything else is found
in its code. For each loop these are proven, or it is refused by the number of the claim:

  1. It has one head, which every round passes, and the jump that Xen writes there covers whole
     instructions that mean the same elsewhere and that nothing jumps into.
  2. One load of 8 bytes is the entry: its address moves by 8 a round, always in the same direction.
  3. Where the loop is entered, and after every round whatever the entry was, the index and the address
     agree: the entry lies at the table's start, a page boundary, plus 8 times the index.
  4. A round for a zero entry that is not the table's last ends at the head. The only other way out of it
     is one that a look at this CPU's pending events decides: the preemption check.
  5. Such a round writes nothing but the zero back and places of the stack frame that nothing reads.
  6. At the head after it, each register that something still reads is as it was, but for those that move
     on by one entry and one that is 0. A register that the round loads anew has the same value as before.
  7. The flags and one register are read by nothing at the head: the trampoline may use them.
  8. On the lowest level, for runs of plain entries: at the head after any round, whatever the entry was and
     whatever was said of it, each register and each place of the stack frame that something still reads is
     as it was, but for those that move on by one entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import z3
from capstone import x86

from layout_checker.facts import JUMP_SIZE, movable, not_entered
from layout_checker.loops import Loop
from layout_checker.report import Refused

from .flow import FLAGS, Program, halves
from .registers import CALLER_SAVED, GENERAL, PARTS, view
from .symbolic import (
    AFTER,
    CPU,
    MEMORY,
    Load,
    Machine,
    State,
    Store,
    Value,
    after_call,
    any_memory,
    memory_named,
    number,
)

ENTRIES = 512
PAGE = 4096
BETWEEN_CHECKS = 64
FUNCTIONS = {"promote": "_get_page_type", "demote": "devalidate_page"}
CALLEES = {"promote": "get_page_from_l{}e", "demote": "put_page_from_l{}e"}
LEVELS = (1, 2, 3, 4)
LOWEST = 1
NAMES = [f"{way}_l{level}" for way in FUNCTIONS for level in LEVELS]
MAP_TABLE = "map_domain_page"
PREEMPTION_CHECK = "hvm_local_events_need_delivery"
ASSUMED = "nr_validated_ptes of a page to devalidate names an entry (Xen's own invariant)"


@dataclass(frozen=True)
class Site:
    """A proven loop: the arguments of zero_runs.S, and for the reader how they came about."""

    loop: Loop
    head: int
    base: str
    index_in_address: str
    step: int
    index: str  # as it is written: 32 or 64 bits
    pointer: str
    clear: str
    group: int
    scratch: str
    dead: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def key(self) -> str:
        """The register whose low bits are the slot."""
        return self.index_in_address or self.base

    @property
    def unit(self) -> int:
        """What a slot counts in the key."""
        return 1 if self.index_in_address else 8

    @property
    def entry(self) -> str:
        """The entry as a memory operand in the assembler's syntax."""
        return f"(%{self.base},%{self.index_in_address},8)" if self.index_in_address else f"(%{self.base})"


def _refuse(claim: int, why: str) -> Refused:
    return Refused(f"claim {claim}: {why}")


def registers_equal(state: State, name: str, half: str, expected: z3.BitVecRef) -> z3.BoolRef:
    """That half of a register has the value that half of a term has."""
    high, low = (63, 32) if half == "high" else (31, 0)
    return z3.Extract(high, low, state.term(name)) == z3.Extract(high, low, expected)


class Proof:
    """The proof of one loop."""

    def __init__(self, program: Program, way: str, level: int) -> None:
        self.name = f"{way}_l{level}"
        self.level = level
        self.way = way
        self.program = program
        self.hypervisor = program.hypervisor
        self.function = program.function(FUNCTIONS[way])
        self.callee = CALLEES[way].format(level)
        self.machine = Machine([program.function(self.callee)])
        self.notes: list[str] = []

    def site(self) -> Site:
        """Prove everything; raises Refused with the first claim that does not hold."""
        self._find_loop()
        code = self._overwritten()
        general = self._rounds()
        self.live = self.function.live[self.head] - self._left_by_callees(general)
        self._find_entry(general)
        self._find_movers(general)
        entered = self._entrances()
        self._find_agreement(entered, general)
        clear, group = self._zero_rounds(entered, general)
        if self.level == LOWEST:
            self._rounds_leave_nothing(general)
        dead = self._dead()
        symbol = self.function.symbol
        return Site(
            loop=Loop(self.name, symbol.xen_name, self.head - symbol.address, code),
            head=self.head,
            base=self.base,
            index_in_address=self.index_in_address,
            step=self.step,
            index=self.index and view(self.index, self.index_width),
            pointer=self.pointer,
            clear=clear,
            group=group,
            scratch=dead[0],
            dead=tuple(dead),
            notes=tuple(self.notes),
        )

    # -- 1: where it is -------------------------------------------------------------------------

    def _find_loop(self) -> None:
        found = {
            head: body
            for head, body in self.function.loops.items()
            if any(self.function.callee(address) == self.callee for address in body)
        }
        inner = {
            head: body for head, body in found.items() if not any(other < body for other in found.values())
        }
        if len(inner) != 1:
            raise _refuse(
                1, f"{self.function.symbol.name} has {len(inner)} loops that call {self.callee}, not one"
            )
        ((self.head, self.body),) = inner.items()

    def _overwritten(self) -> bytes:
        address, code = self.head, b""
        while len(code) < JUMP_SIZE:
            if address not in self.body or address not in self.function.code:
                raise _refuse(1, "the loop ends within the bytes that the jump overwrites")
            instruction = self.function.code[address]
            code += bytes(instruction.bytes)
            address += instruction.size
        try:
            movable(code, self.head)
            not_entered(self.hypervisor, self.head + 1, self.head + len(code) - 1)
        except Refused as refusal:
            raise _refuse(1, f"the bytes at its head: {refusal}") from None
        if self.hypervisor.pointers_into(self.head, self.head):
            raise _refuse(1, "something else points to its head")
        return code

    # -- all rounds -----------------------------------------------------------------------------

    def _rounds(self) -> list[State]:
        """Every round, whatever the entry is and whatever the callees do."""

        def on_call(machine: Machine, state: State, callee: str) -> State:
            return any_memory(machine, after_call(machine, state, callee))

        def on_store(machine: Machine, state: State, store: Store) -> State:
            return any_memory(machine, state)

        start = self.machine.start(self.head)
        back, _ = self.machine.explore(start, self.function, self.body, self.head, on_call, on_store)
        if not back:
            raise _refuse(1, "no path leads round it")
        return back

    def _after(self, state: State, term: z3.BitVecRef) -> z3.BitVecRef:
        """What a term in the registers and memory of the head is after a round."""
        pairs = [(z3.BitVec(name, 64), value.term) for name, value in state.registers.items()]
        memory = memory_named(MEMORY)
        return z3.substitute(term, *pairs, (memory, state.memory))

    def _left_by_callees(self, back: list[State]) -> set[str]:
        """What the code at the head cannot read, as some round leaves there what a callee left."""
        left: set[str] = set()
        for name in set(CALLER_SAVED) - {"rax", "rdx"}:  # a result may be in these
            terms = [state.term(name) for state in back]
            if any(z3.is_const(t) and str(t).startswith(f"{name} {AFTER} ") for t in terms):
                left |= halves(name)
        return left

    # -- 2: the entry and what moves ------------------------------------------------------------

    def _find_entry(self, back: list[State]) -> None:
        found: dict[str, tuple[Load, int]] = {}
        for load in {load.instruction.address: load for state in back for load in state.loads}.values():
            if load.size != 8:
                continue
            for step in (1, -1):
                moved = load.address + 8 * step
                if all(self.machine.proves(s, self._after(s, load.address) == moved) for s in back):
                    found.setdefault(str(load.address), (load, step))
        if len(found) != 1:
            raise _refuse(2, f"{len(found)} addresses move by 8 a round, not one: {', '.join(found) or '-'}")
        ((load, self.step),) = found.values()
        operand = next(o for o in load.instruction.operands if o.type == x86.X86_OP_MEM)
        names = [PARTS[load.instruction.reg_name(r)].register if r else ""
                 for r in (operand.mem.base, operand.mem.index)]  # fmt: skip
        self.base, self.index_in_address = names
        self.address = z3.BitVec(self.base, 64)
        if self.index_in_address:
            self.address = self.address + 8 * z3.BitVec(self.index_in_address, 64)
        plain = operand.mem.disp == 0 and (operand.mem.scale == 8 or not self.index_in_address)
        if not plain or not z3.is_true(z3.simplify(self.address == load.address)):
            raise _refuse(2, f"the entry's address is {load.address}: not a pointer, nor a base and an index")

    def _find_movers(self, back: list[State]) -> None:
        """Registers that every round moves by one entry: by 8, or by 1 in 64 or 32 bits."""
        self.moves: dict[str, z3.BitVecRef] = {}
        self.index = self.pointer = ""
        self.index_width = 64
        for name in GENERAL:
            old = z3.BitVec(name, 64)
            low = z3.Extract(31, 0, old)
            forms = [
                (8, 64, old + 8 * self.step),
                (1, 64, old + self.step),
                (1, 32, z3.ZeroExt(32, low + self.step)),
            ]
            for unit, width, moved in forms:
                if not all(self.machine.proves(s, s.term(name) == moved) for s in back):
                    continue
                if not self._needed(name):
                    break
                self.moves[name] = moved
                if (unit == 8 and self.pointer) or (unit == 1 and self.index):
                    raise _refuse(2, f"more than one register moves by {unit} a round")
                if unit == 8:
                    self.pointer = name
                else:
                    self.index, self.index_width = name, width
                break
        wanted = (self.index, "") if self.index_in_address else (self.pointer, self.pointer)
        if (self.index_in_address or self.base, "" if self.index_in_address else self.base) != wanted:
            raise _refuse(2, f"the entry is at {self.address}, but {self.index or '-'} counts and "
                             f"{self.pointer or '-'} points")  # fmt: skip

    def _needed(self, name: str) -> bool:
        return bool({f"{name}.low", f"{name}.high"} & self.live)

    # -- 3: index and address agree -------------------------------------------------------------

    def _entrances(self) -> list[State]:
        """The states in which the loop is entered, from where its table is mapped."""
        function = self.function
        maps = {a for a in function.code if function.callee(a) == MAP_TABLE}
        ways_out = {place for address in self.body for place in function.follows[address]} - self.body
        for start in (function.symbol.address, *ways_out):
            if self.head in function.reached(start, maps):
                raise _refuse(3, f"a path from {function.name(start)} enters it without {MAP_TABLE}")
        nearest = [a for a in maps if self.head in function.reached(function.follows[a][0], maps)]
        entered: list[State] = []
        for call in nearest:
            entered += self._entrance(function.block_start(call))
        if not entered:
            raise _refuse(3, "no path enters it")
        return entered

    def _entrance(self, start: int) -> list[State]:
        def on_call(machine: Machine, state: State, callee: str) -> State:
            state = any_memory(machine, after_call(machine, state, callee))
            if callee == MAP_TABLE:
                table = machine.fresh("table")
                registers = {**state.registers, "rax": Value(table)}
                aligned = z3.Extract(11, 0, table) == 0
                state = replace(state, registers=registers, conditions=(*state.conditions, aligned))
            return state

        def on_store(machine: Machine, state: State, store: Store) -> State:
            return any_memory(machine, state)

        paths = self.function.reaching({self.head}, self.body - {self.head})
        state = self.machine.start(start)
        back, _ = self.machine.explore(state, self.function, paths, self.head, on_call, on_store)
        return back

    def _find_agreement(self, entered: list[State], back: list[State]) -> None:
        """The relation between index, or limit, and address that holds at the head."""
        if self.index:
            count = z3.ZeroExt(32, z3.Extract(31, 0, z3.BitVec(self.index, 64)))
            if self.index_in_address:
                count = z3.BitVec(self.index, 64)
            inside = z3.ULT(count, number(ENTRIES))
            agreement = z3.Extract(11, 0, self.address - 8 * count) == 0
            if self.way == "demote":
                self.notes.append(ASSUMED)
                entered = [replace(s, conditions=(*s.conditions, self._after(s, inside))) for s in entered]
            self.agreement = z3.And(inside, agreement)
            held = all(self.machine.proves(s, self._after(s, self.agreement)) for s in entered)
        else:
            held = False
            for name in GENERAL:
                limit = z3.BitVec(name, 64)
                left = limit - self.address
                self.agreement = z3.And(
                    z3.Extract(11, 0, limit) == 0,
                    z3.UGE(left, number(8)),
                    z3.ULE(left, number(PAGE)),
                    z3.Extract(2, 0, self.address) == 0,
                )
                held = all(self.machine.proves(s, self._after(s, self.agreement)) for s in entered)
                if held:
                    break
        if not held:
            raise _refuse(3, "where it is entered, index and address do not agree")
        for state in back:
            state = replace(state, conditions=(self.agreement, *state.conditions))
            if not self.machine.proves(state, self._after(state, self.agreement)):
                raise _refuse(3, "after a round, index and address do not agree")

    # -- 4, 5, 6: a zero entry ------------------------------------------------------------------

    def _zero_rounds(self, entered: list[State], general: list[State]) -> tuple[str, int]:
        machine = self.machine
        memory = memory_named(MEMORY)
        zero = [z3.Select(memory, self.address + byte) == 0 for byte in range(8)]
        last = (ENTRIES - 1 if self.step > 0 else 0) * 8
        others = z3.Extract(11, 0, self.address) != last
        always = self._always(entered, general)

        def on_call(machine: Machine, state: State, callee: str) -> State:
            if callee == self.callee and self.way == "demote":
                if not machine.proves(state, state.term("rdi") == 0):
                    raise _refuse(4, f"{callee} is not given the zero entry")
                place = self.program.function(callee).symbol.address
                return replace(state, address=place, returns=(*state.returns, state.address))
            if callee == PREEMPTION_CHECK:
                return after_call(machine, state, callee, frozenset({CPU}))
            raise _refuse(4, f"a zero entry makes it call {callee or 'through a pointer'}")

        def on_store(machine: Machine, state: State, store: Store) -> State:
            same = z3.And(store.address == self.address, store.value == 0)
            if store.size != 8 or not machine.proves(state, same):
                raise _refuse(5, f"a zero entry makes it write at {store.at:#x}")
            return state

        start = machine.start(self.head, [self.agreement, *zero, others, *always])
        back, left = machine.explore(start, self.function, self.body, self.head, on_call, on_store)
        if not back:
            raise _refuse(4, "no round of a zero entry ends at its head")
        for state in left:
            if not state.decided_by or not state.decided_by <= {CPU}:
                raise _refuse(
                    4, f"a zero entry may leave it for {self.function.name(state.address)}, "
                    f"which {', '.join(sorted(state.decided_by)) or 'nothing'} decides"
                )  # fmt: skip
        checks = any(PREEMPTION_CHECK in state.calls for state in back)
        if checks != bool(left):
            raise _refuse(4, f"{len(left)} ways out, and {'a' if checks else 'no'} preemption check")
        for state in back:
            self._frame_kept(state)
        return self._registers_kept(back, entered, general), BETWEEN_CHECKS if checks else ENTRIES

    def _always(self, entered: list[State], general: list[State]) -> list[z3.BoolRef]:
        """What else holds whenever control is at the head: constants, and registers of 32 bits."""
        claims = []
        for name in GENERAL:
            old, value = z3.BitVec(name, 64), entered[0].term(name)
            claims.append(z3.Extract(63, 32, old) == 0)
            if z3.is_bv_value(value):
                claims.append(old == value)
        claims = [c for c in claims if all(self.machine.proves(s, self._after(s, c)) for s in entered)]
        while True:  # each may rest on the others, until they all hold each other up
            kept = [
                claim
                for claim in claims
                if all(
                    self.machine.proves(
                        replace(s, conditions=(self.agreement, *claims, *s.conditions)), self._after(s, claim)
                    )
                    for s in general
                )
            ]
            if len(kept) == len(claims):
                return kept
            claims = kept

    def _frame_kept(self, state: State, what: str = "a zero entry") -> None:
        if state.frame and not self.function.frame_stays_private:
            raise _refuse(5, "the address of its stack frame is taken")
        for offset, (size, _) in state.frame.items():
            read = {f"[{offset + byte}]" for byte in range(size)} & self.live
            if read:
                raise _refuse(5, f"{what} changes the stack frame at {offset:#x}, which is read")

    def _registers_kept(self, back: list[State], entered: list[State], general: list[State]) -> str:
        """The register that a zero entry leaves 0, if any."""
        cleared = []
        live = self.live
        for name in GENERAL:
            old = z3.BitVec(name, 64)
            halves = [half for half in ("low", "high") if f"{name}.{half}" in live]

            def all_equal(expected: z3.BitVecRef, name: str = name, halves: list[str] = halves) -> bool:
                return all(
                    self.machine.proves(s, registers_equal(s, name, half, expected))
                    for s in back
                    for half in halves
                )

            if all_equal(self.moves.get(name, old)):
                continue
            if name not in self.moves and all_equal(number(0)):
                cleared.append(name)
                continue
            if name not in self.moves and self._loaded_anew(name, back, entered, general):
                continue
            raise _refuse(6, f"a zero entry changes {name}, which is read")
        if len(cleared) > 1:
            raise _refuse(6, f"a zero entry clears {' and '.join(cleared)}, not one")
        return view(cleared[0], 32) if cleared else ""

    def _loaded_anew(self, name: str, back: list[State], entered: list[State], general: list[State]) -> bool:
        """Whether the register is always a copy of one place in memory that a zero entry leaves alone."""
        copy = back[0].term(name)
        if not self._only_head_terms(copy):
            return False
        for state in (*entered, *general):
            if not self.machine.proves(state, state.term(name) == self._after(state, copy)):
                return False
        self.notes.append(f"{name} is {' '.join(str(copy).split())} whenever control is at the head")
        return all(self.machine.proves(state, state.term(name) == copy) for state in back)

    def _only_head_terms(self, term: z3.ExprRef) -> bool:
        if z3.is_const(term) and term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            return str(term) in {*GENERAL, MEMORY}
        return all(self._only_head_terms(child) for child in term.children())

    # -- 7: what the trampoline may use ---------------------------------------------------------

    def _dead(self) -> list[str]:
        live = self.live
        if FLAGS in live:
            raise _refuse(7, "the flags are read")
        order = sorted(set(GENERAL) - {"rsp"}, key=lambda name: (name not in CALLER_SAVED, name))
        dead = [name for name in order if not self._needed(name)]
        if not dead:
            raise _refuse(7, "every register is read")
        return dead

    # -- 8: any entry, for runs of plain ones ----------------------------------------------------

    def _rounds_leave_nothing(self, general: list[State]) -> None:
        """A round that goes on leaves index and pointer one entry further, and nothing else that is read."""
        for name in GENERAL:
            expected = self.moves.get(name, z3.BitVec(name, 64))
            halves = [half for half in ("low", "high") if f"{name}.{half}" in self.live]
            for half in halves:
                if not all(self.machine.proves(s, registers_equal(s, name, half, expected)) for s in general):
                    raise _refuse(8, f"a round changes {name}, which is read")
        for state in general:
            self._frame_kept(state, "a round")


def find(program: Program, name: str) -> Site:
    """Find and prove one loop."""
    way, level = name.split("_l")
    return Proof(program, way, int(level)).site()
