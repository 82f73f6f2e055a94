# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs to be tracked: the kernels of Phoenix' list and GCBench, written for this repository, each for
malloc and for the stock Boehm collector; the five in-memory engines of Debian's tkrzw; and what takes the
time of a tracker's questions (passtimer.c).

Invariant: both programs of a source compute the same from the same input, and print a checksum of it; with
one size it is the same in every run, whoever tracks. The engines have one thread and a fixed seed, and print
how many records they have at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ... import artifacts, compiler, host
from ...machines.initramfs import File, Tree, program

Size = Literal["small", "medium", "large"]
SIZES: tuple[Size, ...] = ("small", "medium", "large")

_SOURCES = Path(__file__).parent
_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
# The collector's library is named before the source that needs it.
_COLLECTED = ("-DCOLLECTED", "-Wl,--no-as-needed", "-lgc")
_COLLECTOR = Path("/usr/include/gc.h")
TIMER = "/lib/trapless/passtimer.so"
"""Preload it to have the time of each question for dirty bits taken."""


@dataclass(frozen=True)
class Workload:
    """A program with its arguments by size; the paper's sizes, and ours in the same words."""

    name: str
    binary: str
    sizes: Mapping[Size, str]
    paper: str
    here: str

    def command(self, size: Size, *, collected: bool) -> str:
        """Return the shell's line that runs it."""
        return f"{self.binary}{'-collected' if collected else ''} {self.sizes[size]}"


_UNITS = {
    "histogram": "bytes",
    "kmeans": "points of 24 coordinates, 16 clusters",
    "linear-regression": "bytes",
    "matrix-multiply": "rows",
    "pca": "rows of 48 columns",
    "reverse-index": "bytes",
    "string-match": "bytes",
    "word-count": "bytes",
}


def _kernel(name: str, small: int, medium: int, large: int, paper: str) -> Workload:
    numbers: dict[Size, int] = {"small": small, "medium": medium, "large": large}
    commands: dict[Size, str] = {size: f"{name} {number}" for size, number in numbers.items()}
    return Workload(name, "phoenix", commands, paper, f"{small:,}; {medium:,}; {large:,} {_UNITS[name]}")


WORKLOADS = (
    Workload(
        "gcbench",
        "gcbench",
        {"small": "100000 12 14", "medium": "200000 14 16", "large": "500000 16 18"},
        "500K 16 18, 650K 18 20, 750K 20 22",
        "100K 12 14; 200K 14 16; 500K 16 18",
    ),
    _kernel("histogram", 4_000_000, 12_000_000, 24_000_000, "0.1, 0.5, 1.5 GB"),
    _kernel("kmeans", 3_000, 9_000, 18_000, "-d -c -p 500, 1K, 5K"),
    _kernel("linear-regression", 3_000_000, 9_000_000, 18_000_000, "not run"),
    _kernel("matrix-multiply", 160, 240, 320, "500, 1K, 2K"),
    _kernel("pca", 300, 550, 800, "-r -c 1K, 5K, 10K"),
    _kernel("reverse-index", 400_000, 1_200_000, 2_400_000, "not run"),
    _kernel("string-match", 1_000_000, 3_000_000, 6_000_000, "50, 100, 200 MB"),
    _kernel("word-count", 800_000, 2_400_000, 4_800_000, "50, 100, 200 MB"),
)

_ENGINE = "tkrzw_dbm_perf"


def _engine(name: str, thousands: int, paper: str, options: str = "") -> Workload:
    """Return an engine that sets so many thousand records, twice and four times as many."""

    def command(times: int) -> str:
        records = 1000 * times * thousands
        return f"sequence --set_only --random_seed 0 --dbm {name} --iter {records} {options.format(records)}"

    sizes: dict[Size, str] = {"small": command(1), "medium": command(2), "large": command(4)}
    here = f"{thousands}K, {2 * thousands}K, {4 * thousands}K sets, {options.format('as many')}".rstrip(", ")
    return Workload(name, _ENGINE, sizes, paper, f"{here}, 1 thread")


CHECKPOINTED = (
    _engine("baby", 150, "3M, 5M, 10M sets, 3 threads"),
    _engine("cache", 250, "--cap_rec_num 3M, 5M, 10M, 5 threads", "--cap_rec_num {}"),
    _engine("stdhash", 220, "--buckets 100K --record_comp zlib, 2 threads", "--buckets 100000"),
    _engine("stdtree", 110, "2 threads"),
    _engine("tiny", 250, "--buckets 30M, 5M sets, 3, 5, 7 threads"),
    _kernel("kmeans", 24_000, 48_000, 96_000, "-d -c -p 500, 1K, 5K"),
    _kernel("matrix-multiply", 400, 500, 640, "500, 1K, 2K"),
    _kernel("pca", 1_000, 1_420, 2_000, "-r -c 1K, 5K, 10K"),
    _kernel("word-count", 11_000_000, 22_000_000, 44_000_000, "50, 100, 200 MB"),
)
"""For checkpoints: the kernels live longer than under a collector. Small ones run for a second of the guest's
clock, medium and large ones for twice and four times as long."""


def _built(name: str, source: str, flags: tuple[str, ...]) -> Path:
    target = artifacts.build_dir() / "lab" / "workloads" / name
    newest = max(path.stat().st_mtime for path in _SOURCES.glob("*.[ch]"))
    if not target.exists() or target.stat().st_mtime < newest:
        compiler.compile_c(_SOURCES / source, target, (*_FLAGS, *flags))
    return target


def build() -> dict[str, Path]:
    """Return the programs by name, compiled if they are out of date."""
    host.file(_COLLECTOR, "libgc-dev")
    binaries = sorted({workload.binary for workload in WORKLOADS})
    plain = {name: _built(name, f"{name}.c", ()) for name in binaries}
    return plain | {
        f"{name}-collected": _built(f"{name}-collected", f"{name}.c", _COLLECTED) for name in binaries
    }


def engine_files() -> Tree:
    """Return the engines' program as files of a guest."""
    return program(host.tool(_ENGINE, "tkrzw-utils"))


def files() -> Tree:
    """Return the compiled ones, with the stock collector and the timer, as files of a guest."""
    timer = _built("passtimer.so", "passtimer.c", ("-shared", "-fPIC"))
    built = [program(path) for path in build().values()]
    merged = {path: entry for tree in built for path, entry in tree.items()}
    return {**merged, TIMER: File(timer)}
