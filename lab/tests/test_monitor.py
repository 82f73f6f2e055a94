# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Telling a processor that executes a breakpoint that is gone from one that works.

The looks were recorded from QEMU 7.2: a dom0 of two CPUs that hung while a module was loaded; one CPU was
stuck, the other waited for it in a loop.
"""

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recorded import DATA
from trapless_lab import host
from trapless_lab.machines import monitor, session
from trapless_lab.machines.monitor import Look, Monitor

AT = 0xFFFFFFFF81023290


def recorded(name: str) -> list[Look]:
    return [
        Look(int(counter, 16), bytes.fromhex(instruction), frozenset(int(word, 16) for word in stack))
        for counter, instruction, stack in json.loads((DATA / "looks.json").read_text())[name]
    ]


def test_a_processor_that_is_stuck_is_found() -> None:
    assert monitor.executes_a_breakpoint_that_is_gone(recorded("stuck"))


def test_one_that_waits_for_it_is_not() -> None:
    assert not monitor.executes_a_breakpoint_that_is_gone(recorded("waits"))


def test_nor_one_that_halts() -> None:
    assert not monitor.executes_a_breakpoint_that_is_gone([Look(0, b"", frozenset())] * 100)


def test_a_call_that_returns_is_no_breakpoint() -> None:
    # After a call its return address is on the stack, five bytes on.
    looks = [
        replace(look, stack=frozenset(word + 4 if word == AT + 1 else word for word in look.stack))
        for look in recorded("stuck")
    ]
    assert not monitor.executes_a_breakpoint_that_is_gone(looks)


def test_nor_is_one_that_memory_has() -> None:
    # A kernel that handles its own breakpoint again and again is at fault itself.
    looks = [
        replace(look, instruction=b"\xcc" + look.instruction[1:]) if look.counter == AT else look
        for look in recorded("stuck")
    ]
    assert not monitor.executes_a_breakpoint_that_is_gone(looks)


def test_nor_one_that_is_being_changed() -> None:
    looks = recorded("stuck")
    first = next(index for index, look in enumerate(looks) if look.counter == AT)
    looks[first] = replace(looks[first], instruction=b"\x0f\x1f\x44\x00\x00")
    assert not monitor.executes_a_breakpoint_that_is_gone(looks)


@contextlib.contextmanager
def emulator(asked: Monitor, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """QEMU with two processors that stand still before their first instruction."""
    command = [str(host.qemu("x86")), "-nodefaults", "-display", "none", "-S", "-smp", "2", *asked.argv]
    with session.process(command, log) as running:
        while not (asked.socket.exists() or running.poll() is not None):
            time.sleep(0.05)
        yield running


def test_the_monitor_answers(tmp_path: Path) -> None:
    with monitor.attached() as asked:
        with emulator(asked, tmp_path / "log"):
            looks = asyncio.run(asked.looks())
            assert not asked.stuck()
        assert {cpu: len(seen) for cpu, seen in looks.items()} == {0: monitor.LOOKS, 1: monitor.LOOKS}
        assert all(len(look.instruction) == monitor.BYTES for seen in looks.values() for look in seen)


def test_an_emulator_that_has_ended_is_not_stuck() -> None:
    with monitor.attached() as asked:
        assert not asked.stuck()


@pytest.mark.parametrize("after_s", [0, 0.2, 0.5])
def test_nor_is_one_that_ends_while_it_is_asked(tmp_path: Path, after_s: float) -> None:
    """A guest powers off when it likes, so QEMU may go away between two questions."""
    with monitor.attached() as asked, emulator(asked, tmp_path / "log") as running:
        ending = threading.Timer(after_s, running.terminate)
        ending.start()
        assert not asked.stuck()
        ending.join()
        # Looking takes longer than that, so the end came in its middle.
        assert after_s < monitor.LOOKS * monitor.BETWEEN_S
        running.wait(10)
