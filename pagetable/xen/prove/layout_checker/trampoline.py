# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The form of a trampoline of zero_runs.S: what can be seen without running it.

It is left by repeating what its jump overwrote and a jump behind that, and by nothing else. It writes no
memory and calls nothing, but for runs of plain entries on the lowest level: there all registers that a call
may change, but one, are pushed, a function of plain_runs.c is called, and they are popped in the other order,
in one straight line into which nothing jumps.

That it does the same as the loop, and that the one register is read by nothing, is for find_zero_runs.py and
run_zero_runs.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import capstone
from capstone import x86

from .loops import Loop
from .report import Refused

SWITCH = "zero_runs_enabled"
RUN_SWITCH = "l1_update_enabled"
# The functions of plain_runs.c that a loop's trampoline calls.
RUNS = {"promote_l1": "plain_run_take", "demote_l1": "plain_run_drop"}
JUMP = 0xE9
JUMP_SIZE = 5
CALL = "call"
# What a called function may change.
CALLER_SAVED = {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"}
# All that a trampoline is made of, besides jumps and the part with the call.
PLAIN = {"add", "cmp", "lea", "mov", "or", "test", "xor"}
# cmp byte ptr [rip + switch], 0: the switch's place is two bytes behind the start.
SWITCH_AT = 2
SWITCH_TEST = re.compile(r"cmp byte ptr \[rip[^]]*\], 0")

# Symbol or section, addend, kind: what is put at a place.
Link = tuple[str, int, str]


@dataclass(frozen=True)
class Step:
    """One instruction."""

    at: int
    text: str
    detail: capstone.CsInsn

    @property
    def name(self) -> str:
        """Its mnemonic."""
        return str(self.detail.mnemonic)

    @property
    def is_jump(self) -> bool:
        """Whether it may go on elsewhere."""
        return x86.X86_GRP_JUMP in self.detail.groups


def check_trampoline(loop: Loop, code: bytes, links: Mapping[int, Link]) -> None:
    """Refuse a trampoline of any other form; `links` is by the place in its code."""
    stock = len(code) - JUMP_SIZE - len(loop.code)
    if code[stock:-JUMP_SIZE] != loop.code or code[-JUMP_SIZE] != JUMP:
        raise Refused(f"{loop.name}: does not end with what it was put in place of, and a jump")
    name, addend, _ = links.get(len(code) - JUMP_SIZE + 1, ("", 0, ""))
    if (name, addend + 4) != (loop.function, loop.back):
        raise Refused(f"{loop.name}: goes back to {name}+{addend + 4:#x}")
    steps = disassembled(loop, code[:stock])
    calls = the_call(loop, steps, links)
    refers(loop, steps, {place: link for place, link in links.items() if place < stock}, calls)
    plain = [step for number, step in enumerate(steps) if number not in calls]
    for step in plain:
        is_plain(loop, step)
    leads(loop, plain, {step.at for step in plain} | {stock})


def disassembled(loop: Loop, code: bytes) -> list[Step]:
    """Its instructions up to what is repeated."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    found = [
        Step(instruction.address, f"{instruction.mnemonic} {instruction.op_str}".rstrip(), instruction)
        for instruction in disassembler.disasm(code, 0)
    ]
    if sum(step.detail.size for step in found) != len(code):
        raise Refused(f"{loop.name}: is not a whole number of instructions")
    return found


def the_call(loop: Loop, steps: list[Step], links: Mapping[int, Link]) -> range:
    """Which steps are the call with all that belongs to it; none if there is none."""
    found = [number for number, step in enumerate(steps) if step.name == CALL]
    if not found:
        return range(0)
    call = found[0]
    first = call - 1
    while first and steps[first - 1].name == "push":
        first -= 1
    kept = [step.detail.op_str for step in steps[first : call - 1]]
    after = [step.text for step in steps[call + 1 : call + 3 + len(kept)]]
    scratch = CALLER_SAVED - set(kept)
    if len(scratch) != 1 or len(kept) != len(CALLER_SAVED) - 1:
        raise Refused(f"{loop.name}: a call with nothing on the stack but {kept}")
    if not steps[call - 1].text.startswith("lea rdi, "):
        raise Refused(f"{loop.name}: {steps[call - 1].text} before the call")
    wanted = [
        "mov eax, eax",
        f"mov {scratch.pop()}, rax",
        *(f"pop {register}" for register in reversed(kept)),
    ]
    if after != wanted:
        raise Refused(f"{loop.name}: behind the call is {after}, not {wanted}")
    name, addend, kind = links.get(steps[call].at + 1, ("", 0, ""))
    if (name, addend, kind) != (RUNS.get(loop.name), -4, "R_X86_64_PLT32"):
        raise Refused(f"{loop.name}: calls {name}{addend:+} by {kind}")
    return range(first, call + 3 + len(kept))


def refers(loop: Loop, steps: list[Step], links: Mapping[int, Link], calls: range) -> None:
    """It reads its switch first, that of runs before it asks for one, and refers to nothing else."""
    wanted = {0: SWITCH}
    if calls:
        wanted[calls[0] - 2] = RUN_SWITCH
    for number, switch in wanted.items():
        if not 0 <= number < len(steps) - 1:
            raise Refused(f"{loop.name}: does not test {switch}")
        test, jump = steps[number : number + 2]
        found = links.get(test.at + SWITCH_AT, ("", 0, ""))
        if found != (switch, -5, "R_X86_64_PC32") or not SWITCH_TEST.fullmatch(test.text):
            raise Refused(f"{loop.name}: does not test {switch} in {test.text}")
        if jump.name != "je":
            raise Refused(f"{loop.name}: {jump.text} behind the test of {switch}")
    places = {steps[number].at + SWITCH_AT for number in wanted}
    places |= {steps[number].at + 1 for number in calls if steps[number].name == CALL}
    for place, (name, _, _) in links.items():
        if place not in places:
            raise Refused(f"{loop.name}: refers to {name}")


def is_plain(loop: Loop, step: Step) -> None:
    """Refuse what writes memory or the stack pointer, calls, or returns."""
    if step.is_jump:
        return
    if step.name not in PLAIN:
        raise Refused(f"{loop.name}: has {step.text}")
    if any(o.type == x86.X86_OP_MEM and o.access & capstone.CS_AC_WRITE for o in step.detail.operands):
        raise Refused(f"{loop.name}: {step.text} writes to memory")
    if x86.X86_REG_RSP in step.detail.regs_access()[1] or x86.X86_REG_ESP in step.detail.regs_access()[1]:
        raise Refused(f"{loop.name}: {step.text} moves the stack")


def leads(loop: Loop, steps: list[Step], starts: set[int]) -> None:
    """Refuse a jump that leads to anything but these."""
    for step in filter(lambda step: step.is_jump, steps):
        operand = step.detail.operands[0]
        if operand.type != x86.X86_OP_IMM or operand.imm not in starts:
            raise Refused(f"{loop.name}: {step.text} leads out of it, or into the part with the call")
