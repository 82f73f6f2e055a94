# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The initramfs: reproducible, and with the requested contents."""

import gzip
import lzma
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trapless_lab import artifacts, host
from trapless_lab.experiment import workload
from trapless_lab.machines import guest, initramfs
from trapless_lab.machines.initramfs import File, Link, Tree
from trapless_lab.machines.script import Step, StepResult

PROGRAMS = ("forkdirty", "mark", "pvops", "soaked", "spawn")

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


def test_packed_modules_are_unpacked(tmp_path: Path) -> None:
    packed = tmp_path / "a.ko.xz"
    packed.write_bytes(lzma.compress(b"module"))
    tree = initramfs.modules([packed])
    module, order = tree["/modules/a.ko"], tree["/modules/order"]
    assert isinstance(module, File) and module.read() == b"module"
    assert isinstance(order, File) and order.read() == b"a.ko\n"


def test_a_later_releases_program_brings_its_own_c_library() -> None:
    """The host's is too old for it, and its loader looks in /lib first."""
    root = artifacts.build_dir() / "pagetable/debian13"
    if not (root / "usr/lib64").exists():
        pytest.skip("make -C pagetable debian13 fetches them")
    tree = initramfs.program(host.xen(root).tool("xl"), root)
    assert {"/bin/xl", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"} <= set(tree)
    files = [entry.content for entry in tree.values() if isinstance(entry, File)]
    assert files and all(isinstance(path, Path) and path.is_relative_to(root) for path in files)


def test_dynamic_program_brings_its_libraries() -> None:
    tree = initramfs.program(Path("/bin/sh"))
    assert "/bin/sh" in tree
    assert any("libc.so" in path for path in tree)
    assert any("ld-linux" in path for path in tree)


def test_guest_programs_are_static_and_not_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    built = {path: path.stat().st_mtime_ns for path in map(guest.build, PROGRAMS)}
    assert all(host.shared_libraries(path) == [] and path.stat().st_mode & stat.S_IXUSR for path in built)
    assert {path: path.stat().st_mtime_ns for path in map(guest.build, PROGRAMS)} == built
    stale = next(iter(built))
    os.utime(stale, (0, 0))
    guest.build(stale.name)
    assert stale.stat().st_mtime > 0


def test_two_threads_may_need_a_program_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        built = set(pool.map(guest.build, ["nothing"] * 4))
    assert [path.name for path in built] == ["nothing"]
    assert list((tmp_path / "lab" / "guest").iterdir()) == list(built)


def test_every_program_compiles() -> None:
    names = guest.names()
    assert {"spawn", "mark", "dirtyparts", "cow", "dirtykill"} <= set(names)
    assert all(guest.build(name).exists() for name in names)


def test_programs_are_found_in_commands() -> None:
    """Anywhere in a step's command, but only as a whole word."""
    assert guest.named(["i=0; spawn fork-exit -n 3 >/dev/null & /bin/cow --seed 2"]) == ["cow", "spawn"]
    assert guest.named(["respawn; spawn-all; cow.c; cowthreads"]) == ["cowthreads"]
    assert list(guest.tree("forkdirty")) == ["/bin/forkdirty"]
    # Programs that it runs itself come with it.
    assert list(guest.tree("spawn")) == ["/bin/nothing", "/bin/spawn"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the guest programs once for all tests that run them here."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path_factory.mktemp("build")))
        return {name: guest.build(name) for name in PROGRAMS}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["spawn"], "exactly one mode"),
        (["spawn", "nonsense"], "unknown mode"),
        (["spawn", "fork-exit", "--count", "0"], "--count"),
        (["spawn", "fork-exit", "-n", "-1"], "--count"),
        (["spawn", "fork-exit", "-k", "3x"], "--tick"),
        (["spawn", "browser", "--mib"], "requires an argument"),
        (["spawn", "browser", "--warm-up", "3"], "not for the browser"),
        (["forkdirty"], "number of pages"),
        (["forkdirty", "64x"], "PAGES"),
        (["forkdirty", "--rounds", "0", "64"], "--rounds"),
    ],
)
def test_programs_refuse_bad_arguments(
    programs: dict[str, Path], arguments: list[str], complaint: str
) -> None:
    name, *rest = arguments
    ran = subprocess.run([programs[name], *rest], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert complaint in ran.stderr


def test_the_programs_print_what_is_parsed(programs: dict[str, Path]) -> None:
    def step(*arguments: str) -> StepResult:
        ran = subprocess.run([programs[arguments[0]], *arguments[1:]], capture_output=True, check=True)
        return StepResult(Step(arguments[0], ""), ran.stdout, 0, 0.0)

    assert workload.ns_per_process(step("spawn", "fork-exit", "-w", "1", "-n", "2"), "fork_exit") > 0
    for pages in (0, 64):
        ns = workload.fork_dirty_ns(step("forkdirty", "--rounds", "1", str(pages)), pages)
        assert ns["fork"] > 0
    assert len(workload.operations_ns(step("pvops"))) == 19
