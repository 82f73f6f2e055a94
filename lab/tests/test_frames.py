# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The frames that the guests' inits write stay whole, whichever process ends meanwhile.

An init gets a signal at every orphan's end, which interrupts a write to a terminal. Here the terminal
is full, so that the frame's write waits; then a child ends; then the terminal is read.
"""

import contextlib
import os
import re
import subprocess
import time
import tty
from pathlib import Path

import pytest

from trapless_lab import host
from trapless_lab.machines import guest

FRAME = b"\n@cafe end 0007 0\n"
# An earlier version of init's function, as the negative control.
_TORN = "frame() {\n\tprintf '\\n@%s %s\\n' cafe \"$*\"\n}"
_WAIT_S = 30


def _function(init: str) -> str:
    """Return the function with which an init writes its frames."""
    found = re.search(r"^frame\(\) \{\n.*?^\}$", (guest.SOURCES / init).read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[0]


def _until_asleep(pid: int) -> None:
    """Wait until the process has slept for a while: it then waits for its terminal."""
    asleep = 0
    deadline = time.monotonic() + _WAIT_S
    while asleep < 5:
        assert time.monotonic() < deadline
        asleep = asleep + 1 if Path(f"/proc/{pid}/stat").read_text().split()[2] == "S" else 0
        time.sleep(0.02)


def _fill(line: int) -> None:
    """Write to a terminal until it is full."""
    os.set_blocking(line, False)
    full = 0
    while full < 5:
        try:
            os.write(line, b"x" * 4096)
            full = 0
        except BlockingIOError:
            full += 1
            time.sleep(0.02)
    os.set_blocking(line, True)


def _written(function: str) -> bytes:
    """Return the function's output while a child of its shell ends."""
    terminal, line = os.openpty()
    tty.setraw(line)
    _fill(line)
    child = "sh -c 'read -r x' <&3 >&4 &"
    script = f"exec 3<&0 4>&1 >&2\n{function}\n{child}\nexec 3<&- 4>&-\nnonce=cafe; frame end 0007 0"
    with subprocess.Popen(
        [host.busybox(), "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=line,
    ) as shell:
        assert shell.stdin
        assert shell.stdout
        os.close(line)
        _until_asleep(shell.pid)
        shell.stdin.close()
        assert shell.stdout.read() == b""  # only the child had it open, and has ended
        _until_asleep(shell.pid)
        written = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(terminal, 65536):
                written += piece
    os.close(terminal)
    return written.lstrip(b"x")


@pytest.mark.parametrize("init", ["init", "domu-init"])
def test_a_frame_is_whole(init: str) -> None:
    whole = rb"\n@(cafe )?(\d+\.\d\d )?end 0007 0\n"
    assert re.fullmatch(whole, _written(_function(init)))


def test_negative_control_a_frame_that_is_printed_line_by_line_is_torn() -> None:
    assert _written(_TORN) == FRAME.removeprefix(b"\n")
