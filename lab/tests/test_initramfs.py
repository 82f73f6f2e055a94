# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The initramfs: reproducible, and with what was asked for."""

import gzip
import os
import stat
import subprocess
from pathlib import Path

import pytest

from trapless_lab import guest, host, initramfs
from trapless_lab.initramfs import File, Link, Tree

TREE: Tree = {"/bin/tool": File(b"#!x\n", 0o755), "/bin/other": Link("tool"), "/etc/deep/file": File(b"data")}


def listing(archive: Path) -> dict[str, list[str]]:
    shown = subprocess.run(
        ["cpio", "-itvn", "--quiet"],
        input=gzip.decompress(archive.read_bytes()),
        capture_output=True,
        check=True,
    ).stdout.decode()
    return {line.split()[8]: line.split() for line in shown.splitlines()}


def test_contents(tmp_path: Path) -> None:
    initramfs.pack(TREE, tmp_path / "a")
    entries = listing(tmp_path / "a")
    assert set(entries) == {
        *initramfs.MOUNT_POINTS,
        *("bin", "bin/tool", "bin/other", "etc", "etc/deep", "etc/deep/file"),
    }
    assert entries["bin/tool"][0] == "-rwxr-xr-x"
    assert entries["bin/other"][0].startswith("l")
    assert all(fields[2:4] == ["0", "0"] for fields in entries.values())


def test_reproducible(tmp_path: Path) -> None:
    initramfs.pack(TREE, tmp_path / "a")
    previous = os.umask(0o077)
    try:
        initramfs.pack(dict(reversed(list(TREE.items()))), tmp_path / "b")
    finally:
        os.umask(previous)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    initramfs.pack({**TREE, "/etc/deep/file": File(b"Data")}, tmp_path / "c")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_modules_keep_their_order_and_appear_once() -> None:
    tree = initramfs.modules([Path("/m/b.ko"), Path("/m/a.ko"), Path("/m/b.ko")])
    order = tree["/modules/order"]
    assert isinstance(order, File)
    assert order.read() == b"b.ko\na.ko\n"


def test_dynamic_program_brings_its_libraries() -> None:
    tree = initramfs.program(Path("/bin/sh"))
    assert "/bin/sh" in tree
    assert any("libc.so" in path for path in tree)
    assert any("ld-linux" in path for path in tree)


def test_guest_programs_are_static_and_not_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    built = {path: path.stat().st_mtime_ns for path in guest.build()}
    assert all(host.shared_libraries(path) == [] and path.stat().st_mode & stat.S_IXUSR for path in built)
    assert {path: path.stat().st_mtime_ns for path in guest.build()} == built
    stale = next(iter(built))
    os.utime(stale, (0, 0))
    guest.build()
    assert stale.stat().st_mtime > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "exactly one mode"),
        (["nonsense"], "unknown mode"),
        (["fork-exit", "--count", "0"], "--count"),
        (["fork-exit", "-n", "-1"], "--count"),
        (["fork-exit", "-k", "3x"], "--tick"),
        (["browser", "--mib"], "requires an argument"),
    ],
)
def test_spawn_refuses_bad_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    spawn = next(path for path in guest.build() if path.name == "spawn")
    ran = subprocess.run([spawn, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert complaint in ran.stderr
