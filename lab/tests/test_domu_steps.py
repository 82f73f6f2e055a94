# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dom0's steps for a domU."""

import base64
import gzip
import lzma
import struct
import subprocess
from pathlib import Path

import pytest

from trapless_lab import host
from trapless_lab.errors import LabError
from trapless_lab.machines import domu, guest
from trapless_lab.machines.domu import DomU
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.transcript import Transcript


def test_config_has_the_domus_fields() -> None:
    lines = DomU("two", memory_mib=128, vcpus=2, linux_args=("nosmp",)).config().splitlines()
    assert {'name = "two"', 'type = "pv"', "memory = 128", "vcpus = 2"} <= set(lines)
    assert 'ramdisk = "/domu/two.initramfs"' in lines
    assert not any("tsc_mode" in line for line in lines)
    assert 'tsc_mode = "native"' in DomU("two", native_tsc=True).config().splitlines()
    assert any(line.startswith("extra = ") and "console=hvc0" in line and "nosmp" in line for line in lines)


@pytest.mark.parametrize("name", ["", "a b", "Guest", "a;b", "1", 'x"'])
def test_a_name_that_would_need_quoting_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        DomU(name)


def test_a_command_arrives_as_it_was_written() -> None:
    command = "printf 'a\\n' \"$x\"; exit 3"
    words = DomU().run(command).split()
    assert words[:3] == ["domu", "run", "guest"]
    assert base64.b64decode(words[3]).decode() == f"{command}\n"


def test_a_command_longer_than_a_console_line_is_refused() -> None:
    DomU().run("x" * 3000)
    with pytest.raises(ValueError, match="3000"):
        DomU().run("x" * 3001)


def test_a_step_of_dom0_becomes_one_of_the_domu() -> None:
    inside = DomU().inside(Step("name", "true", timeout_s=7, expect=None))
    assert inside == Step("name", DomU().run("true"), timeout_s=7, expect=None)


def test_a_missing_program_is_an_error_before_the_boot() -> None:
    with pytest.raises(ValueError, match="domU two does not carry spawn: spawn fork-exit"):
        DomU("two", programs=("pattern",)).step("fork", "spawn fork-exit")
    assert DomU("two", programs=("spawn",)).step("fork", "spawn fork-exit").name == "fork"


def test_an_argument_with_a_programs_name_is_not_a_program() -> None:
    assert DomU("two").step("gate", "echo mark >/sys/do; cat /sys/mark").name == "gate"
    for command in ("true && spawn", "for i in 1 2; do spawn; done", "(spawn)", "! spawn"):
        with pytest.raises(ValueError, match="does not carry spawn"):
            DomU("two").step("fork", command)


def test_warnings_of_a_domu_are_an_error() -> None:
    def transcript(console: bytes) -> Transcript:
        result = StepResult(domu.console(), console, 0, 0.1)
        return Transcript(MACHINES["xen-strict"], (result,), (), "")

    domu.require_quiet(transcript(b"[ 1.0] all is well\n"))
    with pytest.raises(LabError, match="BUG: bad"):
        domu.require_quiet(transcript(b"[ 1.0] BUG: bad rss-counter\n"))


def test_the_installed_kernel_is_unpacked() -> None:
    assert host.unpack_kernel(host.kernel().image).startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("content", "why"),
    [(gzip.compress(b"\x7fELF", mtime=0), "not packed with xz"), (lzma.compress(b"MZ"), "no ELF")],
)
def test_a_kernel_of_another_kind_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    header = bytearray(1024)
    header[0x1F1] = 1  # sectors of set-up code beside the first
    struct.pack_into("<II", header, 0x248, 0, len(content))
    image = tmp_path / "vmlinuz"
    image.write_bytes(header + content)
    with pytest.raises(LabError, match=why):
        host.unpack_kernel(image)


@pytest.mark.parametrize("script", ["domu", "domu-init"])
def test_scripts_are_shell(script: str) -> None:
    path = guest.SOURCES / script
    subprocess.run([host.busybox(), "sh", "-n", path], check=True)
