# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A container of Debian's runc, checkpointed under ``trapless criu``: two pre-dumps, a dump and a restore.

runc finds the criu that it runs (``criu swrk``) by its name, so it needs to know nothing of trapless. It has
criu freeze the container's cgroup before criu seizes a process, and a frozen process cannot be given a
userfaultfd; so one that was not tracked before is dumped as a whole, each time.

The container keeps a history of what it counted, in memory that changes between the dumps, and much memory
that does not. It has the host's network: to lock one of its own, criu wants iptables.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import criu
from packages import unpacked
from trapless_lab import host

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("a container runtime from the network; chains of criu itself are in make check"),
    pytest.mark.skipif(os.geteuid() != 0, reason="runc makes containers as root"),
]

KEPT = 8_000_000
PROGRAM = f"""
kept=$(head -c {KEPT} /dev/zero | tr '\\0' a)
count=0 history=
while :; do
    count=$((count + 1)) history="$history$count,"
    echo $count >/dev/shm/count
    if [ -e /dev/shm/ask ]; then
        echo "$history" >/dev/shm/history
        echo "$kept" | md5sum >/dev/shm/kept
        rm /dev/shm/ask
    fi
    sleep 0.02
done
"""
LASTS = 120.0


class Container:
    """A running container, and runc with a criu."""

    def __init__(self, folder: Path, command: list[str | Path]) -> None:
        self.command = command
        tools, self.bundle = folder / "bin", folder / "bundle"
        tools.mkdir()
        script = tools / "criu"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, command))} "$@"\n')
        script.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        self.folder, self.name = folder, f"trapless-{os.getpid()}"
        root = self.bundle / "rootfs" / "bin"
        root.mkdir(parents=True)
        shutil.copy(host.tool("busybox", "busybox-static"), root / "busybox")
        for applet in ("sh", "cat", "head", "tr", "sleep", "md5sum", "rm", "touch"):
            (root / applet).symlink_to("busybox")

    def runc(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run runc. What it leaves running has no descriptor of ours: criu would find the file outside."""
        log = self.folder / "runc.log"
        command = [
            unpacked("runc") / "usr/sbin/runc",
            "--root",
            self.folder / "state",
            "--log",
            log,
            *arguments,
        ]
        out = subprocess.DEVNULL if arguments[0] in ("run", "restore") else subprocess.PIPE
        done = subprocess.run(
            command,
            cwd=self.bundle,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
            timeout=LASTS,
            check=False,
        )
        if done.returncode and log.exists() and arguments[0] != "exec":
            print("runc", *arguments, log.read_text()[-2000:])
        return done

    def start(self) -> bool:
        """Run the container. Whether it runs."""
        if self.runc("spec").returncode:
            return False
        path = self.bundle / "config.json"
        config = json.loads(path.read_text())
        config["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", PROGRAM]}
        linux = config["linux"]
        linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
        path.write_text(json.dumps(config))
        return self.runc("run", "--detach", self.name).returncode == 0 and self.counts()

    def inside(self, *command: str) -> str:
        """Return what a command in the container prints."""
        return (self.runc("exec", self.name, *command).stdout or "").strip()

    def counts(self) -> bool:
        """Wait until it counts."""
        return _until(lambda: self.inside("cat", "/dev/shm/count").isdigit())

    def track(self) -> bool:
        """Have the holder track it: trapless does so for the tree of ``-t``, whatever it then runs."""
        pid = json.loads(self.runc("state", self.name).stdout)["pid"]
        command = [*self.command[:-1], "true", "pre-dump", "-t", str(pid)]
        return subprocess.run(command, timeout=LASTS, check=False).returncode == 0

    def checkpoint(self, number: int, *more: str) -> int:
        """Make images, on top of those with the number before. Return their bytes of memory; -1: failed."""
        images = self.folder / str(number)
        parent = ("--parent-path", f"../{number - 1}") if number else ()
        work = ("--image-path", str(images), "--work-path", str(self.folder / f"work{number}"))
        if self.runc("checkpoint", *work, *parent, *more, self.name).returncode:
            return -1
        return sum(path.stat().st_size for path in images.glob("pages-*.img"))

    def end(self) -> None:
        """Leave nothing behind."""
        self.runc("delete", "--force", self.name)


def _until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """Return a running container. Skips the test where there can be none."""
    made = Container(tmp_path, criu.trapless(tmp_path / "socket", criu.program(tmp_path)))
    try:
        if not made.start():
            pytest.skip("runc runs no container here")
        yield made
    finally:
        made.end()


_NO_FIRST = "there is no first image, which leaves nothing to others"


def _chain(container: Container) -> list[int]:
    """Return the bytes of memory in the images of two pre-dumps and a dump, and restore the container."""
    sizes = []
    for number in range(2):
        sizes.append(container.checkpoint(number, "--pre-dump"))
        time.sleep(0.5)
    before = int(container.inside("cat", "/dev/shm/count"))
    sizes.append(container.checkpoint(2))
    assert sizes[0] > KEPT, _NO_FIRST
    assert all(size > 0 for size in sizes)
    images = ("--image-path", str(container.folder / "2"), "--work-path", str(container.folder / "restored"))
    assert container.runc("restore", "--detach", *images, container.name).returncode == 0
    container.inside("touch", "/dev/shm/ask")
    assert _until(lambda: bool(_kept(container)))
    # Each number once, in order, from before the first image to after the restore.
    history = [int(number) for number in container.inside("cat", "/dev/shm/history").rstrip(",").split(",")]
    print(
        "it counted to", before, "before the dump, and to", history[-1], "after it; bytes of memory:", *sizes
    )
    assert history == list(range(1, history[-1] + 1)) and history[-1] > before
    assert _kept(container) == hashlib.md5(b"a" * KEPT + b"\n").hexdigest()
    return sizes


def test_a_container_is_restored_as_it_was(container: Container) -> None:
    _chain(container)


def test_one_that_is_tracked_is_dumped_in_increments(container: Container) -> None:
    assert container.track()
    sizes = _chain(container)
    assert all(size < KEPT / 4 for size in sizes[1:])


def _kept(container: Container) -> str:
    return container.inside("cat", "/dev/shm/kept").partition(" ")[0]


def test_a_holder_that_tells_nothing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRTY_MUTANT", "hold-silent")
    program = criu.program(tmp_path)
    made = Container(tmp_path, criu.trapless(tmp_path / "socket", program, mutant=True))
    try:
        if not made.start():
            pytest.skip("runc runs no container here")
        assert made.track()
        with pytest.raises(AssertionError) as caught:
            _chain(made)
        print(caught.value)
        assert _NO_FIRST not in str(caught.value)
    finally:
        made.end()
