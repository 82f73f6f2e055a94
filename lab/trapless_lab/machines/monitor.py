# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Asks QEMU's monitor whether a processor of a machine executes a breakpoint that is gone.

Linux changes a function's entry or a jump label in three steps: a breakpoint, the rest of the instruction,
its first byte. QEMU 7.2, which emulates each CPU in a thread, sometimes keeps the translated breakpoint for a
CPU that executes it just then: the CPU enters the kernel's handler, which finds no breakpoint and goes back,
and so for ever. No processor does that. About one load in 60 of a module that patches the kernel meets it.

Invariant: the guest is only looked at, and a processor that works is never called stuck. Stuck is one that is
seen again and again at the same instruction, one of those that Linux puts where its breakpoint was (a call, a
jump, a nop), and again and again with the address one byte behind it on its stack. That is the middle of the
instruction, so nothing but a breakpoint there can have put it on a stack.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# The client that QEMU's own developers keep for its protocol.
from qemu.qmp import QMPClient, QMPError

LOOKS = 100
BETWEEN_S = 0.01
# How many looks must find the processor at the instruction, and how many its breakpoint on the stack.
_ENOUGH = 4
_TIMEOUT_S = 60
_REGISTER = {name: re.compile(rf"\b{name}=([0-9a-f]{{16}})\b") for name in ("RIP", "RSP")}
_MEMORY = re.compile(r"\b0x([0-9a-f]+)\b")
BYTES = 5
_WORDS = 64
_PATCHED_IN = (b"\xe8", b"\xe9", b"\xeb", b"\x0f\x1f", b"\x66\x90")


@dataclass(frozen=True)
class Look:
    """Where a processor was at one moment, the bytes that were there, and what was on top of its stack."""

    counter: int
    instruction: bytes
    stack: frozenset[int]


def executes_a_breakpoint_that_is_gone(looks: Sequence[Look]) -> bool:
    """Whether one processor, looked at again and again, is stuck."""
    for at in {look.counter for look in looks if look.instruction.startswith(_PATCHED_IN)}:
        there = [look for look in looks if look.counter == at]
        trapped = [look for look in looks if at + 1 in look.stack]
        if (
            len({look.instruction for look in there}) == 1
            and len(there) >= _ENOUGH
            and len(trapped) >= _ENOUGH
        ):
            return True
    return False


class Monitor:
    """The monitor of one machine; ``argv`` makes QEMU have it."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.argv = ("-qmp", f"unix:{socket},server=on,wait=off")

    def stuck(self) -> bool:
        """Whether a processor is stuck now; no if QEMU does not answer, for which others have limits."""
        try:
            looks = asyncio.run(asyncio.wait_for(self.looks(), _TIMEOUT_S))
        except (QMPError, OSError, EOFError, TimeoutError):
            # EOFError: the guest powered off between two questions, and QEMU ended.
            return False
        return any(executes_a_breakpoint_that_is_gone(seen) for seen in looks.values())

    async def looks(self) -> dict[int, list[Look]]:
        """Look at each processor ``LOOKS`` times.

        Raises QMPError, OSError, EOFError.
        """
        client = QMPClient()
        await client.connect(str(self.socket))
        try:
            listed = await client.execute("query-cpus-fast")
            assert isinstance(listed, list)
            looks: dict[int, list[Look]] = {cpu["cpu-index"]: [] for cpu in listed}
            for _ in range(LOOKS):
                for cpu, seen in looks.items():
                    seen.append(await _look(client, cpu))
                await asyncio.sleep(BETWEEN_S)
        finally:
            await client.disconnect()
        return looks


async def _look(client: QMPClient, cpu: int) -> Look:
    async def ask(command: str) -> str:
        arguments: dict[str, object] = {"command-line": command, "cpu-index": cpu}
        return str(await client.execute("human-monitor-command", arguments))

    async def memory(form: str, address: int) -> list[int]:
        return [int(number, 16) for number in _MEMORY.findall(await ask(f"x /{form} {address:#x}"))]

    registers = await ask("info registers")
    counter, stack = (_register(name, registers) for name in ("RIP", "RSP"))
    return Look(
        counter, bytes(await memory(f"{BYTES}xb", counter)), frozenset(await memory(f"{_WORDS}xg", stack))
    )


def _register(name: str, registers: str) -> int:
    found = _REGISTER[name].search(registers)
    return int(found[1], 16) if found else 0


@contextlib.contextmanager
def attached() -> Iterator[Monitor]:
    """Give one boot its monitor."""
    # Not beside the machine's files: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="trapless-") as directory:
        yield Monitor(Path(directory) / "monitor")
