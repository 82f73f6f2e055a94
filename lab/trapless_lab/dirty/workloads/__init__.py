# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs to be tracked: the kernels of Phoenix' list and GCBench, written for this repository, each for
malloc and for the stock Boehm collector; and what takes the time of that collector's questions (passtimer.c).

Invariant: both programs of a source compute the same from the same input, and print a checksum of it; with
one size it is the same in every run, whoever tracks.
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
    """A program with its arguments by size, and the paper's sizes."""

    name: str
    binary: str
    sizes: Mapping[Size, str]
    paper: str

    def command(self, size: Size, *, collected: bool) -> str:
        """Return the shell's line that runs it."""
        return f"{self.binary}{'-collected' if collected else ''} {self.sizes[size]}"


def _kernel(name: str, small: int, medium: int, large: int, paper: str) -> Workload:
    numbers: dict[Size, int] = {"small": small, "medium": medium, "large": large}
    return Workload(name, "phoenix", {size: f"{name} {number}" for size, number in numbers.items()}, paper)


WORKLOADS = (
    Workload(
        "gcbench",
        "gcbench",
        {"small": "100000 12 14", "medium": "200000 14 16", "large": "500000 16 18"},
        "500K 16 18, 650K 18 20, 750K 20 22",
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


def files() -> Tree:
    """Return them, with the stock collector and the timer, as files of a guest."""
    timer = _built("passtimer.so", "passtimer.c", ("-shared", "-fPIC"))
    built = [program(path) for path in build().values()]
    merged = {path: entry for tree in built for path, entry in tree.items()}
    return {**merged, TIMER: File(timer)}
