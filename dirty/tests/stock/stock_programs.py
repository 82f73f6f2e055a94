# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs that others wrote, each started with a load that makes it write: redis, PostgreSQL, a JVM, node.

redis and PostgreSQL come as Debian's packages, which are not installed. None of the four
listens on a network; redis has a Unix socket.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from packages import run, unpacked

# Where PostgreSQL 15 of Debian 12 has its programs.
POSTGRES = Path("usr/lib/postgresql/15/bin")
NOBODY = 65534
LOADED = 20.0  # seconds until a program must run under its load

JVM = """
import java.util.*;
import java.util.concurrent.*;
public class Churn {
    public static void main(String[] none) throws Exception {
        Map<Integer, byte[]> kept = new ConcurrentHashMap<>();
        for (int thread = 0; thread < 2; thread++) {
            final int seed = thread;
            Thread worker = new Thread(() -> {
                Random random = new Random(seed);
                while (true) {
                    kept.put(random.nextInt(4000), new byte[random.nextInt(20000)]);
                    List<String> dropped = new ArrayList<>();
                    for (int i = 0; i < 200; i++) dropped.add("x" + random.nextLong());
                    Collections.sort(dropped);
                }
            });
            worker.start();
        }
        System.out.println("loaded");
        new CountDownLatch(1).await();
    }
}
"""
NODE = """
const kept = new Map(), buffers = [];
let at = 0;
setInterval(() => {
    for (let i = 0; i < 2000; i++) {
        kept.set((at * 7919) % 50000, { at, text: 'x'.repeat(at % 97) + at, list: [at, at + 1] });
        at++;
    }
    buffers[at % 50] = Buffer.alloc(100000, at % 251);
    require('zlib').deflate(buffers[at % 50], () => {});
}, 1);
console.log('loaded');
"""


T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """A program that runs under its load."""

    pid: int


@contextmanager
def _running(
    command: Sequence[str | Path], user: int | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the block ends; its output goes to a pipe that nobody need read."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        user=user,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(what: str, look: Callable[[], T | None]) -> T:
    end = time.monotonic() + LOADED
    while (found := look()) is None:
        assert time.monotonic() < end, f"{what}: not there after {LOADED:.0f} s"
        time.sleep(0.05)
    return found


@contextmanager
def redis(keys: int = 200_000) -> Iterator[tuple[Program, Path]]:
    """Run redis with so many keys (0.7 KiB each) and no load yet; also yields its socket.

    Debian's redis-tools has the server's program, under the name of one of its uses.
    """
    binaries = unpacked("redis-tools") / "usr/bin"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, socket = folder / "redis-server", folder / "socket"
        server.symlink_to(binaries / "redis-check-rdb")
        command: list[str | Path] = [server, "--port", "0", "--unixsocket", socket, "--dir", folder]
        command += ["--save", "", "--enable-debug-command", "yes"]
        process = stack.enter_context(_running(command))
        _wait_for("redis", lambda: socket.exists() or None)
        run(binaries / "redis-cli", "-s", socket, "debug", "populate", str(keys), "key:", "640")
        yield Program(process.pid), socket


@contextmanager
def redis_written() -> Iterator[Program]:
    """Run redis while redis-benchmark changes random keys."""
    benchmark = unpacked("redis-tools") / "usr/bin/redis-benchmark"
    with redis() as (program, socket):
        load: list[str | Path] = [benchmark, "-s", socket, "-l", "-q", "-r", "200000", "-d", "600"]
        load += ["-t", "set,lpush,hset,zadd"]
        with _running(load):
            yield program


@contextmanager
def postgres() -> Iterator[Program]:
    """Run PostgreSQL under pgbench; the program is the server process of one of its connections."""
    binaries = unpacked("postgresql-15") / POSTGRES
    unpacked("postgresql-client-15")
    user = NOBODY if os.geteuid() == 0 else None  # it does not run as root
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        if user is not None:
            os.chown(folder, user, -1)
        data = folder / "data"
        run(binaries / "initdb", "-D", data, "-U", "bench", "-A", "trust", "--no-sync", user=user)
        server: list[str | Path] = [binaries / "postgres", "-D", data, "-k", folder]
        server += ["-c", "listen_addresses=", "-c", "fsync=off"]
        process = stack.enter_context(_running(server, user=user))
        _wait_for("PostgreSQL", lambda: (folder / ".s.PGSQL.5432").exists() or None)
        bench: list[str | Path] = [binaries / "pgbench", "-h", folder, "-U", "bench"]
        run(*bench, "-i", "-s", "3", "postgres")
        stack.enter_context(_running([*bench, "-c", "2", "-T", "3600", "postgres"]))

        def connection() -> Program | None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
            ours = sorted(pid for pid, line in lines.items() if b"postgres: bench" in line)
            # Both of the load: the one that filled the tables may not have ended yet.
            return Program(ours[-1]) if len(ours) >= 2 else None

        yield _wait_for("a connection of pgbench", connection)


@contextmanager
def jvm() -> Iterator[Program]:
    """Run a JVM whose threads allocate, keep and drop."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "Churn.java"
        source.write_text(JVM)
        with _running(["java", "-Xmx256m", source]) as process:
            assert process.stdout and process.stdout.readline() == "loaded\n"
            yield Program(process.pid)


@contextmanager
def node() -> Iterator[Program]:
    """Run node with a load on its heap, its buffers and its worker threads."""
    with _running(["node", "-e", NODE]) as process:
        assert process.stdout and process.stdout.readline() == "loaded\n"
        yield Program(process.pid)
