# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs Xen's own functions in a processor emulator, stock and with a payload's trampolines, and compares.

A second opinion that shares nothing with the proofs: whole functions run from their first instruction to
their return, over random tables, and what counts is what the calling convention lets a caller see. Each
entry's reference counting is in functions that are not run but played, with results that depend on the
entry only: success, errors, and requests to try again. If such a function, or a preemption, ends a call
early, it is called again as Xen's callers do, until the table is done. A run of plain entries is played
too: of entries that a payload may do itself, a random number.

Invariant: two runs of one case are given the same registers, memory and answers, and differ in nothing but
the trampolines.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import unicorn
from unicorn import x86_const as x86

from layout_checker.clobbers import graph
from layout_checker.header import Header
from layout_checker.hypervisor import Hypervisor
from layout_checker.loops import Loop
from layout_checker.report import Refused
from layout_checker.trampoline import RUNS

from .registers import CALLEE_SAVED, CALLER_SAVED
from .trampolines import Trampolines

PAGE = 4096
ENTRIES = 512
LEVELS = (1, 2, 3, 4)
TYPE_SHIFT = 61
PARTIAL, VALIDATED = 1 << 56, 1 << 58
EINTR, EINVAL, ERESTART = -4, -22, -85
OWNERS = 0xFFFF830000000000
OWNER, PAGE_INFO, VCPU, EVENTS = (OWNERS + (n << 20) for n in (1, 2, 3, 4))
TABLE = OWNERS + (5 << 20)  # with nothing mapped on either side
STACK_SIZE = 0x8000
STACK = OWNERS + (6 << 20)
RETURN = OWNERS + (7 << 20)
IMAGE_SIZE = 16 << 20
PHYSICAL = (1 << 40) - 1
HALT = b"\xf4"
WORD = (1 << 64) - 1
MIX = 0x9E3779B97F4A7C15
CALLEE_ARGUMENTS = {
    **{f"get_page_from_l{n}e": ("rdi", "rsi", "rdx", "rcx")[: 4 if n > 1 else 3] for n in LEVELS},
    **{f"put_page_from_l{n}e": ("rdi", "rsi", "rdx")[: 3 if n > 1 else 2] for n in LEVELS},
}
ENTRY_OF_RUN = {
    RUNS[f"{way}_l1"]: f"{call}_page_from_l1e" for way, call in (("promote", "get"), ("demote", "put"))
}
PRESENT, USER = 1, 4
HALF = {"rdx", "rcx"}  # flags: 32 bits of these, but for the owners of get_page_from_l1e
POLL = "hvm_local_events_need_delivery"
MAP = "map_domain_page"
CRASH = "__domain_crash"
COUNTED = {"get_page_light": 1, "put_page": -1}  # a compiler makes one of them a call, or both
BETWEEN_LOOKS = 64
MOST_CALLS = 2000
MOST_INSTRUCTIONS = 2_000_000


@dataclass(frozen=True)
class Case:
    """One table and the circumstances in which it is validated or devalidated."""

    way: str
    level: int
    seed: int
    table: tuple[int, ...]
    first: int  # nr_validated_ptes of a page that is partly done; -1 for one that is not
    partial: bool
    hvm: bool  # who asks is an HVM domain: its events are looked for by a call
    preempted: float  # how often such a look finds some
    answers: tuple[int, ...]  # what the played functions say besides success


@dataclass
class Outcome:
    """What a caller can see of it."""

    calls: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    memory: tuple[bytes, ...] = ()
    looks: int = 0  # for pending events


class Emulator:
    """The hypervisor in an emulated processor."""

    def __init__(
        self, hypervisor: Hypervisor, layout: Header, trampolines: Trampolines | None = None
    ) -> None:
        self.hypervisor = hypervisor
        self.at = layout.values
        self.engine = engine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        engine.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        engine.hook_add(unicorn.UC_HOOK_TLB_FILL, self._translate)
        self.mapped: set[int] = set()
        self.times: dict[int, int] = {}  # how often each entry has been asked about
        self.runs = 0  # entries of runs that were played, in all cases
        self.poll_noise = random.Random()
        self._map(hypervisor.base & ~(PAGE - 1), IMAGE_SIZE)
        self._write(hypervisor.base, hypervisor.image.flat)
        for address in (OWNER, PAGE_INFO, VCPU, EVENTS, TABLE, RETURN):
            self._map(address, PAGE)
        self._map(STACK, STACK_SIZE)
        self._write(RETURN, HALT)
        if trampolines:
            self._map(trampolines.address, 16 * PAGE)
            for address, data in trampolines.pieces():
                self._write(address, data)
            for address, name in trampolines.runs.items():
                engine.hook_add(unicorn.UC_HOOK_CODE, self._play_run, name, begin=address, end=address)
        self.names: dict[int, str] = {}
        self.writes: dict[str, list[str]] = {}
        for name in self._callees():
            self.writes[name] = self._written_by(name)
            address = hypervisor.symbol(name).address
            self.names[address] = name
            engine.hook_add(unicorn.UC_HOOK_CODE, self._play, begin=address, end=address)

    def _callees(self) -> set[str]:
        """Everything that the functions with the loops call, and the level's functions."""
        names = set(CALLEE_ARGUMENTS)
        loops = ("_get_page_type", "devalidate_page")
        # A compiler may put what is unlikely into a part of its own.
        for name in (
            *loops,
            *(f"{name}.cold" for name in loops if f"{name}.cold" in self.hypervisor.symbols),
        ):
            for instruction in self.hypervisor.function(name):
                if instruction.mnemonic == "call" and instruction.target is not None:
                    names.add(self.hypervisor.function_at(instruction.target))
        return names

    def _written_by(self, name: str) -> list[str]:
        """The caller-saved registers that a function may write.

        Of one that calls no other these are the ones in its code: by -fipa-ra its callers may know that.
        """
        function = graph(self.hypervisor, self.hypervisor.symbol(name))
        if any(function.callee(address) is not None for address in function.code):
            return list(CALLER_SAVED)
        written = {
            part.partition(".")[0] for address in function.code for part in function.effects(address)[1]
        }
        return [register for register in CALLER_SAVED if register in written]

    # -- memory: the emulator has 40 bits of physical address, Xen's addresses are wider -----------

    def _translate(self, engine: unicorn.Uc, address: int, kind: int, entry: Any, data: object) -> bool:
        entry.paddr = address & PHYSICAL
        entry.perms = unicorn.UC_PROT_ALL
        return address & ~(PAGE - 1) in self.mapped

    def _map(self, address: int, size: int) -> None:
        self.engine.mem_map(address & PHYSICAL, size)
        self.mapped |= set(range(address, address + size, PAGE))

    def _write(self, address: int, data: bytes) -> None:
        self.engine.mem_write(address & PHYSICAL, data)

    def _read(self, address: int, size: int) -> bytes:
        return bytes(self.engine.mem_read(address & PHYSICAL, size))

    # -- the functions that are played ----------------------------------------------------------

    def _register(self, name: str) -> int:
        return int(self.engine.reg_read(REGISTERS[name]))

    def _play(self, engine: unicorn.Uc, address: int, size: int, data: object) -> None:
        name = self.names[address]
        if name in CALLEE_ARGUMENTS and not self._register("rdi") & 1:
            return  # an entry that is not present needs no reference: Xen's own code says so
        result = self._answer(name)
        # What the callee leaves of the other registers; looks at pending events may differ in number.
        self._return(address, self.writes[name], result)

    def _return(self, address: int, written: Iterable[str], result: int) -> None:
        """To the caller, with noise in the registers that the function may write."""
        stack = self._register("rsp")
        noise = (self.case.seed ^ address ^ len(self.outcome.calls)) * MIX
        left = {register: noise * odd & WORD for odd, register in enumerate(written, 3)}
        left["rax"] = result & WORD
        left["rsp"] = stack + 8
        self.engine.reg_write_batch([(REGISTERS[register], value) for register, value in left.items()])
        (back,) = struct.unpack("<Q", self._read(stack, 8))
        self.engine.reg_write(REGISTERS["rip"], back)  # alone: in a batch it would be overlooked

    def _play_run(self, engine: unicorn.Uc, address: int, size: int, name: str) -> None:
        """What Xen's loop would have said and done for some of the entries that follow."""
        first = self._register("rdi")
        callee = ENTRY_OF_RUN[name]
        most = random.Random(self.case.seed ^ first).choice((0, 1, 2, 7, ENTRIES))
        most = min(most, ENTRIES - 1 - first % PAGE // 8)
        done = 0
        while done < most:
            (entry,) = struct.unpack("<Q", self._read(first + 8 * done, 8))
            if not entry & PRESENT or self._choice(entry, self.times.get(entry, 0) + 1):
                break
            self.times[entry] = self.times.get(entry, 0) + 1
            self.outcome.calls.append((callee, (entry, *[OWNER] * (len(CALLEE_ARGUMENTS[callee]) - 1))))
            if callee.startswith("get"):
                self._write(first + 8 * done, struct.pack("<Q", self._marked(entry)))
            done += 1
        self.runs += done
        self._return(address, CALLER_SAVED, done | self.case.seed << 32)  # the result has 32 bits

    def _marked(self, entry: int) -> int:
        """A present entry as Xen writes it."""
        kernel = self.at["XEN_L1_KERNEL_BITS"]
        if not entry & USER:
            entry |= kernel
        return entry if entry & kernel & ~USER else entry | self.at["XEN_L1_USER_BITS"]

    def _answer(self, name: str) -> int:
        if name == POLL:
            self.outcome.looks += 1
            return int(self.poll_noise.random() < self.case.preempted)
        if name == MAP:
            return TABLE
        if name == CRASH:
            self.crashed = True
        if name in COUNTED and self._register("rdi") == PAGE_INFO:
            (count,) = struct.unpack("<Q", self._read(PAGE_INFO + 8, 8))
            self._write(PAGE_INFO + 8, struct.pack("<Q", count + COUNTED[name]))
        if name not in CALLEE_ARGUMENTS:
            return 0
        arguments = tuple(self._register(register) for register in CALLEE_ARGUMENTS[name])
        if "l1e" not in name:
            arguments = (*arguments[:1], *(value & 0xFFFFFFFF for value in arguments[1:]))
        self.outcome.calls.append((name, arguments))
        if len(self.outcome.calls) > MOST_CALLS:
            self.engine.emu_stop()
        entry = arguments[0]
        times = self.times[entry] = self.times.get(entry, 0) + 1
        return self._choice(entry, times) or int(name.startswith("put"))

    def _choice(self, entry: int, times: int) -> int:
        """What is said of an entry when it is asked about once more, if that is not success."""
        if self.case.answers and times < 3:
            choice = random.Random(self.case.seed ^ entry ^ times)
            if choice.random() < 0.1:
                return choice.choice(self.case.answers)
        return 0

    # -- one case -------------------------------------------------------------------------------

    def run(self, case: Case, poll_seed: int = 0) -> Outcome:
        """Validate or devalidate one table, again and again until it is done."""
        self.case, self.outcome, self.times = case, Outcome(), {}
        self.crashed = False
        self.poll_noise = random.Random(poll_seed)
        self._set_up()
        for _ in range(ENTRIES * 2):
            result = self._call()
            if self.crashed or not self._goes_on():
                break
        self.outcome.results.append(result)
        areas = ((TABLE, PAGE), (PAGE_INFO, PAGE), (OWNER, PAGE), (VCPU, PAGE))
        memory = [bytearray(self._read(address, size)) for address, size in areas]
        if case.preempted and result == 0:
            memory[1][0x1C:0x1E] = bytes(2)  # where it was interrupted last
        self.outcome.memory = tuple(bytes(area) for area in memory)
        return self.outcome

    def _set_up(self) -> None:
        case = self.case
        noise = random.Random(case.seed)
        self._write(TABLE, struct.pack(f"<{ENTRIES}Q", *case.table))
        owner = bytearray(noise.randbytes(PAGE))
        options, mode = self.at["XEN_DOMAIN_OPTIONS"], self.at["XEN_DOMAIN_PAGING_MODE"]
        owner[options] = owner[options] & 0xFE | case.hvm
        owner[mode : mode + 4] = bytes(4) if noise.random() < 0.5 else b"\1\0\0\0"
        self._write(OWNER, bytes(owner))
        pending, masked = noise.choice(((0, 0), (0, 1), (1, 1)))
        self._write(EVENTS, bytes((pending, masked)))
        vcpu = bytearray(PAGE)
        domain = self.at["XEN_VCPU_DOMAIN"]  # behind the pointer to what the guest sees of its events
        vcpu[domain - 8 : domain + 8] = struct.pack("<QQ", EVENTS, OWNER)
        self._write(VCPU, bytes(vcpu))
        kind = case.level << TYPE_SHIFT
        state = noise.getrandbits(5) << 10
        if case.first >= 0:
            state |= case.first | case.partial << 15
        if case.way == "promote":
            info = kind | PARTIAL | 1 if case.first >= 0 else kind
        else:
            info = kind | 1 | (PARTIAL if case.first >= 0 else 0)
        page = struct.pack("<QQQIHH", 0, 1, info, (OWNER - OWNERS) >> 12, state, 0)
        self._write(PAGE_INFO, page + bytes(PAGE - len(page)))
        self.info = info
        top = STACK + STACK_SIZE - 1
        self._write(STACK, bytes(STACK_SIZE))
        self._write(top - self.at["XEN_STACK_PROCESSOR_ID"], bytes(4))
        self._write(top - self.at["XEN_STACK_CURRENT"], struct.pack("<Q", VCPU))

    def _call(self) -> int:
        case, engine = self.case, self.engine
        noise = random.Random(f"{case.seed} registers")
        given = [(REGISTERS[name], noise.getrandbits(64)) for name in (*CALLER_SAVED, *CALLEE_SAVED)]
        engine.reg_write_batch(given)
        kept = {register: self._register(register) for register in CALLEE_SAVED}
        stack = STACK + STACK_SIZE - 0x200 - 8
        self._write(stack, struct.pack("<Q", RETURN))
        engine.reg_write(REGISTERS["rsp"], stack)
        engine.reg_write(REGISTERS["rdi"], PAGE_INFO)
        if case.way == "promote":
            function = "_get_page_type"
            engine.reg_write(REGISTERS["rsi"], case.level << TYPE_SHIFT)
            engine.reg_write(REGISTERS["rdx"], 1)
        else:
            function = "devalidate_page"
            engine.reg_write(REGISTERS["rsi"], self.info)
        try:
            engine.emu_start(self.hypervisor.symbol(function).address, 0, count=MOST_INSTRUCTIONS)
        except unicorn.UcError as error:
            raise Refused(f"{function} stopped at {self._rip():#x}: {error}") from error
        if self._rip() != RETURN + len(HALT) or self._register("rsp") != stack + 8:
            raise Refused(f"{function} does not return: at {self._rip():#x}")
        for register, value in kept.items():
            if self._register(register) != value:
                raise Refused(f"{function} changes {register}, which its caller needs")
        result = self._register("rax") & 0xFFFFFFFF
        return result - (1 << 32) if result >> 31 else result

    def _rip(self) -> int:
        return self._register("rip")

    def _goes_on(self) -> bool:
        """Whether the page is partly done, and Xen's caller would come back."""
        if self.case.way == "promote":
            (info,) = struct.unpack("<Q", self._read(PAGE_INFO + 0x10, 8))
            return bool(info & PARTIAL)
        result = self._register("rax") & 0xFFFFFFFF
        if result not in (ERESTART & 0xFFFFFFFF, EINTR & 0xFFFFFFFF):
            return False
        if result == ERESTART & 0xFFFFFFFF:
            self.info |= PARTIAL
        return True


REGISTERS = {
    name: getattr(x86, f"UC_X86_REG_{name.upper()}") for name in (*CALLER_SAVED, *CALLEE_SAVED, "rsp", "rip")
}


# -- cases --------------------------------------------------------------------------------------


def random_table(choose: random.Random) -> tuple[int, ...]:
    """A table in one of the shapes that matter: empty, dense, sparse, with runs, with one entry."""
    table = [0] * ENTRIES
    shape = choose.choice(("empty", "one", "dense", "sparse", "runs", "ends", "holes"))
    density = {"dense": 1.0, "sparse": choose.choice((0.01, 0.05, 0.3)), "holes": 0.97}.get(shape, 0)
    for slot in range(ENTRIES):
        if choose.random() < density:
            table[slot] = random_entry(choose)
    if shape == "one":
        table[choose.randrange(ENTRIES)] = random_entry(choose)
    elif shape == "runs":
        slot = 0
        while slot < ENTRIES:
            length = choose.randrange(1, 90)
            if choose.random() < 0.5:
                table[slot : slot + length] = [random_entry(choose) for _ in table[slot : slot + length]]
            slot += length
    elif shape == "ends":
        for slot in (0, 7, 8, 63, 64, 255, 256, 271, 272, 447, 448, 504, 511):
            if choose.random() < 0.5:
                table[slot] = random_entry(choose)
    return tuple(table)


def random_entry(choose: random.Random) -> int:
    """Present mostly; else something in any one bit or in many, which Xen looks at too."""
    kind = choose.random()
    if kind < 0.7:
        return choose.getrandbits(40) << 12 | choose.getrandbits(12) | 1
    if kind < 0.9:
        return 1 << choose.randrange(64)
    return choose.getrandbits(63) << 1 or 2


def random_case(choose: random.Random, loop: str) -> Case:
    """A case for one of the loops."""
    way, level = loop.split("_l")
    first, partial = -1, False
    if choose.random() < 0.5:
        partial = level != "1" and choose.random() < 0.5
        # Xen's own invariant: a page is partly done if an entry is, or if one entry at least is done.
        first = choose.randrange(0 if partial else 1, ENTRIES)
    preempted = choose.choice((0.0, 0.0, 0.01, 0.05))
    answers = choose.choice(((), (), (ERESTART, EINTR), (EINVAL,), (ERESTART, EINTR, EINVAL)))
    if level == "1" or (way == "demote" and EINVAL in answers):
        answers = (EINVAL, 2, 0x82) if way == "promote" and answers else ()
    return Case(
        way, int(level), choose.getrandbits(48), random_table(choose), first if level != "1" else -1,
        partial, bool(preempted) or choose.random() < 0.3, preempted, answers,
    )  # fmt: skip


def differences(case: Case, stock: Outcome, boosted: Outcome) -> Iterator[str]:
    """What differs between two runs of one case, in words."""
    for what, one, other in (
        ("the last result", stock.results, boosted.results),
        ("the entries' calls", stock.calls, boosted.calls),
        ("the table", stock.memory[0], boosted.memory[0]),
        ("struct page_info", stock.memory[1], boosted.memory[1]),
        ("the owner", stock.memory[2], boosted.memory[2]),
        ("the vcpu", stock.memory[3], boosted.memory[3]),
    ):
        if one != other:
            detail = f": {one!r} and {other!r}" if isinstance(one, list) and len(one) < 3 else ""
            yield f"{what} of {case.way}_l{case.level}, case {case.seed}, differ{detail}"
    if not case.preempted and boosted.looks < stock.looks // BETWEEN_LOOKS:
        yield (
            f"{case.way}_l{case.level}, case {case.seed}, looks for pending events {boosted.looks} times "
            f"in {stock.looks} entries"
        )


def compare(
    hypervisor: Hypervisor, layout: Header, trampolines: Trampolines, loop: Loop, cases: int, seed: int
) -> None:
    """Run random cases of one loop on both; raises Refused at the first difference."""
    choose = random.Random(f"{loop.name} {seed}")
    stock, boosted = Emulator(hypervisor, layout), Emulator(hypervisor, layout, trampolines)
    for _ in range(cases):
        case = random_case(choose, loop.name)
        seeds = (1, 2) if case.preempted else (1, 1)
        outcomes = stock.run(case, seeds[0]), boosted.run(case, seeds[1])
        for difference in differences(case, *outcomes):
            raise Refused(difference)
    if loop.name in RUNS and trampolines.runs and not boosted.runs:
        raise Refused(f"no run of entries was played in {cases} cases")
