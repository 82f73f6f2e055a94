# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A debugger of a translated guest finds in its memory what the guest wrote, and may write it back.

The program is ``guest/debugged.c``, with a VM of its own. The negative control, a kernel that leaves sites
there, is in test_two_vcpus.py.
"""

import pytest

from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power

pytestmark = pytest.mark.machine

DEBUGGED = "/bin/debugged"
SCRIPT = ("write /sys/module/kvm/parameters/bt_mode 2", f"run debugged {DEBUGGED}")
EXPECTED = [
    "before: replaced",
    "begun: as written",
    "while: as written",
    "ended: as written",
    "after: replaced",
]


def files() -> dict[str, File]:
    return {DEBUGGED: File(artifacts.power("tests/guest", "debugged"), 0o755)}


def said(console: power.Console) -> list[str]:
    lines = console.of("debugged").text.splitlines()
    return [line.removeprefix("debugged: ") for line in lines if line.startswith("debugged: ")]


def test_a_debugger_finds_what_the_guest_wrote() -> None:
    console = power.in_host(SCRIPT, files=files(), how=power.How(timeout_s=300), label="debugged")
    assert said(console) == EXPECTED
