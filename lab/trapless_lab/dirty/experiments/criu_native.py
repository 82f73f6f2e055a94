# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checkpoints of redis by stock criu on this host: full ones, and increments of 2 % of the keys.

A dump stands still until it has written its images, and criu writes pages that are apart from each other one
at a time; a pre-dump lets redis go on before it writes. So both are made as increments, and a dump right
after a pre-dump, during which few keys are set: what who wants a short stop would do.

Invariant: how many pages changed between two dumps is found by comparing memory (guest/memory.c), which asks
no tracker; and the redis that is restored from the whole chain has the same content, by its own digest. Times
are of this host, which may be busy: medians of a few rounds, with the extremes.

The environment may set TRAPLESS_CRIU, another criu than Debian's (which needs a kernel that it knows), and
TRAPLESS_REDIS_MIB, redis' memory.
"""

import contextlib
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ... import artifacts, host
from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, Target, experiment
from ...machines import guest

MIB, QUICK_MIB = 1024, 128
ROUNDS = 3
CHANGED = 0.02
MEANWHILE = 0.001
"""The keys that are set between a pre-dump and the dump that follows at once."""
_VALUE = 600  # bytes
_KEYS_A_MIB = 1440  # with all that redis keeps beside a value
_PAGE = 4096

FROZEN_PERCENT = 50
_STANDS_STILL = (
    "a dump writes its images while the program stands still, and pages that lie apart one at a time"
)
IMAGE_TIMES = 1.1

FULL, STOCK, OURS = "full", "stock increment", "trapless increment"
OURS_BEFORE = f"{OURS}, by pre-dump"
OURS_AFTER = f"{OURS}, right after a pre-dump"


def criu() -> Path:
    """Return a criu that works with this kernel.

    Raises:
        LabError: There is none, or this is not root.
    """
    if os.geteuid() != 0:
        raise LabError("criu dumps and restores as root only")
    named = os.environ.get("TRAPLESS_CRIU")
    found = Path(named) if named else host.tool("criu", "criu")
    said = subprocess.run([found, "check"], capture_output=True, text=True, check=False)
    if said.returncode:
        raise LabError(
            f"{found} does not work with Linux {platform.release()}; TRAPLESS_CRIU may name another:\n"
            f"{said.stderr}"
        )
    return found


def has_soft_dirty(program: Path) -> bool:
    """Whether criu finds soft-dirty bits of the kernel."""
    command: list[str | Path] = [program, "check", "--feature", "mem_dirty_track"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Redis:
    """A redis that listens at a socket in its folder."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    keys: int

    def ask(self, *words: str, send: bytes | None = None) -> str:
        """Return redis' answer to a command."""
        command: list[str | Path] = [
            host.tool("redis-cli", "redis-tools"),
            "-s",
            self.folder / "socket",
            *words,
        ]
        done = subprocess.run(command, input=send, capture_output=True, check=False, timeout=600)
        if done.returncode or done.stdout.startswith(b"ERR"):
            raise LabError(f"redis: {' '.join(words)}: {(done.stdout + done.stderr).decode()}")
        return done.stdout.decode().strip()

    def write(self, generator: random.Random, part: float) -> None:
        """Set a part of the keys anew, to other values of the same length."""
        sets = []
        for key in generator.sample(range(self.keys), int(part * self.keys)):
            name, value = f"key:{key}".encode(), generator.randbytes(_VALUE // 2).hex().encode()
            sets.append(
                b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(value), value)
            )
        self.ask("--pipe", send=b"".join(sets))


@contextlib.contextmanager
def redis(folder: Path, mib: int) -> Iterator[Redis]:
    """Run redis with so much memory, filled."""
    # redis-tools has the server's program under the name of one of its uses, and starts no service.
    server = folder / "redis-server"
    server.symlink_to(host.tool("redis-check-rdb", "redis-tools"))
    command: list[str | Path] = [server, "--port", "0", "--unixsocket", folder / "socket", "--save", ""]
    command += ["--dir", folder, "--enable-debug-command", "yes"]
    with Path(os.devnull).open("r+b") as nothing:
        process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, cwd=folder
        )
    try:
        end = time.monotonic() + 20
        while not (folder / "socket").exists():
            if time.monotonic() > end:
                raise LabError("redis did not start")
            time.sleep(0.05)
        running = Redis(process, folder, mib * _KEYS_A_MIB)
        running.ask("debug", "populate", str(running.keys), "key", str(_VALUE))
        yield running
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Dump:
    """What one run of criu came to."""

    seconds: float
    frozen_ms: float
    bytes: int
    changed: int = 0
    """Bytes of pages that are not as they were after the dump before."""


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-8:])


def _dump(command: Sequence[str | Path], words: Sequence[str | Path], images: Path) -> Dump:
    images.mkdir()
    # What was written before is not to be written to the disk during this.
    os.sync()
    start = time.monotonic()
    line = [*command, *words, "-D", images, "-v2", "-o", "log", "--display-stats"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    seconds = time.monotonic() - start
    frozen = re.search(r"Frozen time: (\d+) us", done.stdout + done.stderr)
    complaint = re.search(r"^.*reads? dirty.*$", done.stderr, re.MULTILINE)
    if done.returncode or frozen is None:
        log = (
            (images / "log").read_text(errors="replace").splitlines()[-8:]
            if (images / "log").exists()
            else []
        )
        raise LabError("criu failed:\n" + "\n".join([done.stderr, *log]))
    if complaint and "was not cleared" not in complaint[0]:
        raise LabError(f"not tracked: {complaint[0]}")
    size = sum(path.stat().st_size for path in images.glob("pages-*.img"))
    return Dump(seconds, int(frozen[1]) / 1000, size)


def _full(program: Path, words: Sequence[str | Path], images: Path) -> Dump:
    """Make a dump that nobody needs."""
    try:
        return _dump([program], words, images)
    finally:
        shutil.rmtree(images)


def _memory(*words: str | Path) -> str:
    done = subprocess.run([guest.build("dirtymemory"), *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise LabError(f"dirtymemory: {done.stderr}")
    return done.stdout


def _changed(saved: Path) -> int:
    """Return the bytes of pages that are not as they were saved."""
    found = re.search(r"pages, (\d+) differ, (\d+) on one side only", _memory("compare", saved))
    assert found is not None
    return (int(found[1]) + int(found[2])) * _PAGE


@dataclass(frozen=True)
class Chain:
    """The dumps of one redis, each by the images of the one before; the last leaves it stopped."""

    first: Dump
    """A full one."""
    increments: Mapping[str, Sequence[Dump]]
    """By their way: ``OURS``, for one."""
    last: Path


# By turns: the way, and the keys that are set before.
_TURNS = (
    ("pre-dump", OURS_BEFORE, CHANGED),
    ("dump", OURS, CHANGED),
    ("pre-dump", OURS_BEFORE, CHANGED),
    ("dump", OURS_AFTER, MEANWHILE),
)


def _chain(command: Sequence[str | Path], target: Redis, folder: Path) -> Chain:
    """Make a chain: between any two dumps of it keys are set."""
    generator, pid = random.Random(0), str(target.process.pid)
    folder.mkdir()
    before = folder / "first"
    first = _dump(command, ["pre-dump", "-t", pid], before)
    found: dict[str, list[Dump]] = {}
    turns = _TURNS * ROUNDS
    for number, (kind, way, part) in enumerate(turns):
        saved, images = folder / "saved", folder / f"{number}"
        _memory("save", saved, pid)
        target.write(generator, part)
        is_last = number == len(turns) - 1
        more = ["--track-mem", "--leave-stopped" if is_last else "--leave-running"] if kind == "dump" else []
        made = _dump(command, [kind, "-t", pid, "--prev-images-dir", f"../{before.name}", *more], images)
        found.setdefault(way, []).append(replace(made, changed=_changed(saved)))
        before = images
    return Chain(first, found, before)


def row(way: str, dumps: Sequence[Dump]) -> Row:
    """Return a row: medians, and the extremes of the time that redis stood still."""
    frozen = [made.frozen_ms for made in dumps]
    return {
        "way": way,
        "image_mib": round(statistics.median(made.bytes for made in dumps) / 2**20, 1),
        "changed_mib": round(statistics.median(made.changed for made in dumps) / 2**20, 1),
        "seconds": round(statistics.median(made.seconds for made in dumps), 2),
        "frozen_ms": round(statistics.median(frozen), 1),
        "frozen_from_to": f"{min(frozen):.1f}-{max(frozen):.1f}",
        "dumps": len(dumps),
    }


@contextlib.contextmanager
def _held(folder: Path, program: Path) -> Iterator[list[str | Path]]:
    """Yield the command for criu under trapless, with a holder."""
    trapless, socket = artifacts.program("trapless"), folder / "hold"
    with subprocess.Popen(
        [trapless, "dirty", "hold", "--socket", socket], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            if "holding" not in holder.stdout.readline():
                raise LabError("no holder could be started")
            yield [trapless, "criu", "--hold", socket, "--program", program]
        finally:
            holder.terminate()


def _is_restored(program: Path, images: Path, target: Redis, digest: str) -> bool:
    """Kill the dumped redis, restore it from the chain, and compare its content."""
    target.process.kill()
    target.process.wait()
    command: list[str | Path] = [program, "restore", "-D", images, "-d", "-v4", "-o", "restore.log"]
    if subprocess.run(command, capture_output=True, check=False, timeout=600).returncode:
        raise LabError(f"criu did not restore redis:\n{_end_of(images / 'restore.log')}")
    try:
        return target.ask("debug", "digest") == digest
    finally:
        # It has its pid back, and another parent.
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.process.pid, 9)


def measure(program: Path, mib: int) -> tuple[list[Row], list[Check]]:
    """Return a row a way, and what was checked."""
    rows: list[Row] = []
    checks: list[Check] = []
    ways: dict[str, Callable[[Path], contextlib.AbstractContextManager[list[str | Path]]]] = {}
    if has_soft_dirty(program):
        ways[STOCK] = lambda _folder: contextlib.nullcontext([program])
    ways[OURS] = lambda folder: _held(folder, program)
    for way, commanded in ways.items():
        with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with redis(folder, mib) as target:
                if not rows:
                    words = ["dump", "-t", str(target.process.pid), "--leave-running"]
                    full = [_full(program, words, folder / "full") for _ in range(ROUNDS)]
                    rows.append(row(FULL, full))
                with commanded(folder) as command:
                    chain = _chain(command, target, folder / "chain")
                    os.kill(target.process.pid, 18)
                    digest = target.ask("debug", "digest")
                rows.append(row(f"{way}: the first, a full one", [chain.first]))
                rows += [row(of.replace(OURS, way), made) for of, made in chain.increments.items()]
                right = _is_restored(program, chain.last, target, digest)
                checks.append(Check(f"{way} is restored", right, "redis' own digest of all keys and values"))
    return rows, checks


def _targets(rows: Sequence[Row]) -> list[Target]:
    by = {found["way"]: found for found in rows}
    full, ours = by[FULL], by[OURS]
    return [
        *(
            Target(
                f"frozen time of an increment, a {kind}, % of a full dump's",
                round(100 * by[way]["frozen_ms"] / full["frozen_ms"], 1),
                FROZEN_PERCENT,
                _STANDS_STILL if way == OURS else "",
            )
            for kind, way in (
                ("dump", OURS),
                ("pre-dump", OURS_BEFORE),
                ("dump right after a pre-dump", OURS_AFTER),
            )
        ),
        Target(
            "image of an increment, times the pages that changed",
            round(ours["image_mib"] / ours["changed_mib"], 3),
            IMAGE_TIMES,
        ),
    ]


@experiment(
    name="dirty-criu-native",
    accelerator="dirty",
    title="Checkpoints of redis on this host",
    reproduces="OoH: CRIU's use of dirty pages, on hardware (not in the paper)",
    minutes=5,
    alone=True,
)
def dirty_criu_native(context: Context) -> Result:
    """Checkpoint redis while 2 % of its keys change: full dumps, stock increments, and trapless's."""
    mib = int(os.environ.get("TRAPLESS_REDIS_MIB", QUICK_MIB if context.quick else MIB))
    program = criu()
    rows, checks = measure(program, mib)
    by = {found["way"]: found for found in rows}
    without = "" if STOCK in by else "; this kernel has no soft-dirty bits, so stock criu makes no increments"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return Result(
        unit="as named",
        method=f"redis with {mib * _KEYS_A_MIB:,} keys (some {mib} MiB), {100 * CHANGED:g} % of them set "
        f"anew between two dumps, {100 * MEANWHILE:g} % after a pre-dump that a dump follows at once; criu's "
        f"statistics; medians of {ROUNDS} dumps, and of twice as many pre-dumps{without}. changed_mib: pages "
        "that differ, by comparing memory (guest/memory.c)",
        rows=rows,
        paper=[],
        checks=checks,
        machine={
            "linux": platform.release(),
            "criu": " ".join(version.split()),
            **host.package_versions(["redis-tools"]),
            "machines": [],
        },
        keys={"redis_mib": mib, "soft_dirty": STOCK in by},
        summary=[
            BeforeAfter(
                f"{words}, {mib} MiB (a full dump before, an increment after)",
                f"{by[FULL][key]:,.1f}",
                f"{by[OURS][key]:,.1f}",
                f"changed: {by[OURS]['changed_mib']:,.1f} MiB",
            )
            for words, key in (("ms frozen", "frozen_ms"), ("MiB of images", "image_mib"))
        ],
        targets=_targets(rows),
    )
