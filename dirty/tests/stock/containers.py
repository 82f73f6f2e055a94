# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A container that is checkpointed by runc, or by podman through runc, under ``trapless criu``.

Both run whatever is called ``criu`` in their ``PATH``: a script of one line. What they leave running has no
descriptor of ours, for criu would find files that are outside of the container.

Invariant: nothing of this host's own containers is touched, neither their state nor their locks.
"""

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from packages import unpacked
from trapless_lab import host

KEPT = 8_000_000
_PROGRAM = f"""
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
_COMMAND = ("/bin/sh", "-c", _PROGRAM)
_LASTS = 120.0


def until(holds: Callable[[], bool]) -> bool:
    """Wait until something holds, for 20 s. Whether it does."""
    end = time.monotonic() + 20
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Container(ABC):
    """A container that counts, keeps a history of it, in memory that changes between the dumps, and has much
    memory that does not. It has the host's network: to lock one of its own, criu wants iptables.
    """

    # Of the dumps, how many are made while the container goes on.
    before_last = 1

    def __init__(self, folder: Path, command: Sequence[str | Path]) -> None:
        self._command = command
        self.folder, self.name = folder, f"trapless-{os.getpid()}"
        tools = folder / "bin"
        tools.mkdir()
        script = tools / "criu"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, command))} "$@"\n')
        script.chmod(0o755)
        self.runc = unpacked("runc") / "usr/sbin/runc"
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        self.bundle = folder / "bundle"
        self.root = self.bundle / "rootfs"
        programs = self.root / "bin"
        programs.mkdir(parents=True)
        shutil.copy(host.tool("busybox", "busybox-static"), programs / "busybox")
        for applet in ("sh", "cat", "head", "tr", "sleep", "md5sum", "rm", "touch"):
            (programs / applet).symlink_to("busybox")

    def _run(self, *command: str | Path, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        out = subprocess.DEVNULL if quiet else subprocess.PIPE
        return subprocess.run(
            command,
            cwd=self.bundle,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
            timeout=_LASTS,
            check=False,
        )

    @abstractmethod
    def start(self) -> bool:
        """Run the container. Whether it runs."""

    @abstractmethod
    def inside(self, *command: str) -> str:
        """Return what a command in the container prints."""

    @abstractmethod
    def pid(self) -> int:
        """Return its first process."""

    @abstractmethod
    def checkpoint(self, number: int) -> Path | None:
        """Make images, on top of those with the number before. Return their folder, if that succeeded."""

    @abstractmethod
    def restore(self) -> bool:
        """Restore it from the last. Whether that succeeded."""

    @abstractmethod
    def end(self) -> None:
        """Leave nothing behind."""

    def counts(self) -> bool:
        """Wait until it counts."""
        return until(lambda: self.inside("cat", "/dev/shm/count").isdigit())

    def track(self) -> bool:
        """Have the holder track it: trapless does so for the tree of ``-t``, whatever it then runs."""
        command = [*self._command[:-1], "true", "pre-dump", "-t", str(self.pid())]
        return subprocess.run(command, timeout=_LASTS, check=False).returncode == 0


class Runc(Container):
    """Of runc alone."""

    before_last = 2

    def _runc(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        log = self.folder / "runc.log"
        options = ("--root", self.folder / "state", "--log", log)
        done = self._run(self.runc, *options, *arguments, quiet=arguments[0] in ("run", "restore"))
        if done.returncode and log.exists() and arguments[0] != "exec":
            print("runc", *arguments, log.read_text()[-2000:])
        return done

    def start(self) -> bool:
        if self._runc("spec").returncode:
            return False
        path = self.bundle / "config.json"
        config = json.loads(path.read_text())
        config["process"] |= {"terminal": False, "args": [*_COMMAND]}
        linux = config["linux"]
        linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
        path.write_text(json.dumps(config))
        return self._runc("run", "--detach", self.name).returncode == 0 and self.counts()

    def inside(self, *command: str) -> str:
        return (self._runc("exec", self.name, *command).stdout or "").strip()

    def pid(self) -> int:
        return int(json.loads(self._runc("state", self.name).stdout)["pid"])

    def checkpoint(self, number: int) -> Path | None:
        images = self.folder / str(number)
        parent = ("--parent-path", f"../{number - 1}") if number else ()
        kind = ("--pre-dump",) if number < self.before_last else ()
        work = ("--image-path", str(images), "--work-path", str(self.folder / f"work{number}"))
        done = self._runc("checkpoint", *work, *parent, *kind, self.name)
        return None if done.returncode else images

    def restore(self) -> bool:
        images, work = self.folder / str(self.before_last), self.folder / "restored"
        arguments = ("--detach", "--image-path", images, "--work-path", work, self.name)
        return self._runc("restore", *arguments).returncode == 0

    def end(self) -> None:
        self._runc("delete", "--force", self.name)


class Podman(Container):
    """Of podman by runc. It makes one pre-dump for a dump, and asks criu itself whether it can.

    Its own state is in a short path: sockets are below it.
    """

    def __init__(self, folder: Path, command: Sequence[str | Path]) -> None:
        super().__init__(folder, command)
        trees = {name: unpacked(name) for name in ("podman", "conmon", "libgpgme11", "libsubid4")}
        self._podman = trees["podman"] / "usr/bin/podman"
        libraries = [str(tree / "usr/lib/x86_64-linux-gnu") for tree in trees.values()]
        self._state = Path(tempfile.mkdtemp(prefix="podman-"))
        settings, storage = self._state / "containers.conf", self._state / "storage.conf"
        settings.write_text('[engine]\nlock_type = "file"\n')
        storage.write_text(
            f'[storage]\ndriver = "vfs"\nrunroot = "{self._state}/run"\ngraphroot = "{self._state}/graph"\n'
        )
        self._options = (
            *("--runtime", self.runc, "--conmon", trees["conmon"] / "usr/bin/conmon"),
            *("--tmpdir", self._state / "tmp", "--cgroup-manager", "cgroupfs", "--events-backend", "file"),
        )
        self.environment |= {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "CONTAINERS_CONF": str(settings),
            "CONTAINERS_STORAGE_CONF": str(storage),
        }

    def _run_podman(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        # What conmon has open is no pipe of ours.
        quiet = arguments[0] == "run" or arguments[:2] == ("container", "restore")
        done = self._run(self._podman, *self._options, *arguments, quiet=quiet)
        if done.returncode and arguments[0] != "exec":
            print("podman", *arguments, done.stdout, done.stderr)
        return done

    def start(self) -> bool:
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
        how = ("--detach", "--name", self.name, "--network", "host", *limits)
        free = ("--security-opt", "seccomp=unconfined", "--log-driver", "none")
        done = self._run_podman("run", *how, *free, "--rootfs", self.root, *_COMMAND)
        return done.returncode == 0 and self.counts()

    def inside(self, *command: str) -> str:
        return (self._run_podman("exec", self.name, *command).stdout or "").strip()

    def pid(self) -> int:
        return int(self._run_podman("inspect", "--format", "{{.State.Pid}}", self.name).stdout)

    def checkpoint(self, number: int) -> Path | None:
        how = "--pre-checkpoint" if number < self.before_last else "--with-previous"
        if self._run_podman("container", "checkpoint", how, self.name).returncode:
            return None
        images = "pre-checkpoint" if number < self.before_last else "checkpoint"
        return next(self._state.glob(f"graph/vfs-containers/*/userdata/{images}"))

    def restore(self) -> bool:
        return self._run_podman("container", "restore", self.name).returncode == 0

    def end(self) -> None:
        self._run_podman("rm", "--force", "--time", "0", self.name)
        shutil.rmtree(self._state)
