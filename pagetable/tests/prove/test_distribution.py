# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The checker as the package trapless-xen runs it: by the distribution's Python, with its libraries.

They are older than this project's. Debian 12's capstone 4 does not know the instructions of shadow stacks,
of which Xen's alternatives have some: all was proven then, and yet two parts of the payload were left out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import capstone
import pytest

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS  # noqa: E402
from layout_checker.hypervisor import unknown_to_capstone  # noqa: E402
from variants import needs_xen  # noqa: E402

PYTHON = "/usr/bin/python3"
LIBRARIES = "import capstone, elftools, pefile, z3"


def _has_libraries() -> bool:
    try:
        return not subprocess.run([PYTHON, "-c", LIBRARIES], capture_output=True, check=False).returncode
    except OSError:
        return False


@pytest.mark.long(
    "40 s of a processor; the packages' tests in clean roots build payloads by the same libraries"
)
@needs_xen
@pytest.mark.skipif(
    not _has_libraries(), reason="the distribution's python3 lacks what trapless-xen depends on"
)
def test_nothing_is_left_out(tmp_path: Path) -> None:
    checker = [PYTHON, str(XEN_DIR / "prove/check_layout.py"), "--quiet"]
    files = [
        "--xen",
        str(DEFAULT_IMAGE),
        "--syms",
        str(DEFAULT_SYMBOLS),
        "--layout",
        str(XEN_DIR / "layout.h"),
    ]
    made = ["--fit", str(tmp_path / "layout.h"), "--emit-parts", str(tmp_path)]
    done = subprocess.run([*checker, *files, *made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "LEFT OUT" not in done.stdout + done.stderr
    assert (tmp_path / "left-out").read_text() == ""


def test_what_a_capstone_does_not_know_is_read_as_another_does() -> None:
    """Each byte that may follow: where this project's capstone knows the instruction, it says the same."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    read = 0
    for prefix in (b"", b"\xf3", b"\xf3\x48", b"\xf3\x41", b"\x66"):
        for opcode in (b"\x0f\x1e", b"\x0f\xae", b"\x0f\x01"):
            for last in range(256):
                code = prefix + opcode + bytes([last])
                ours = unknown_to_capstone(code)
                if ours:
                    assert list(disassembler.disasm_lite(code, 0)) == [(0, *ours)], code.hex()
                    read += 1
    assert read == 32
