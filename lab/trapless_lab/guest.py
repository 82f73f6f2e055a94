# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The small C programs that run in the guest, compiled when first needed.

Invariant: a binary newer than every source is never rebuilt, and a failed or interrupted build never leaves a
binary behind.
"""

from pathlib import Path

from . import artifacts, compiler

SOURCES = Path(__file__).parent / "guest"
# Of the device that some of them speak to.
INTERFACE = Path(__file__).resolve().parents[2] / "dirty" / "abi"
INIT = SOURCES / "init"
PROGRAMS = (
    "coldmap",
    "cow",
    "cowthreads",
    "dirtyaccess",
    "dirtyforwarded",
    "dirtyfuzz",
    "dirtykeep",
    "dirtykill",
    "dirtylimit",
    "dirtylogged",
    "dirtyparts",
    "filemap",
    "forkdirty",
    "ldt",
    "mark",
    "nothing",
    "pattern",
    "pinned",
    "profiled",
    "pvops",
    "samepage",
    "soaked",
    "spawn",
    "tracked",
)

# Static, so that what a process costs does not depend on the host's dynamic loader.
_FLAGS = ("-O2", "-static", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INTERFACE}")


def build() -> list[Path]:
    """Compile what is out of date and return every program."""
    directory = artifacts.build_dir() / "lab" / "guest"
    sources = (*SOURCES.glob("*.[ch]"), *INTERFACE.glob("*.h"))
    newest = max(path.stat().st_mtime for path in sources)
    return [_build_one(name, directory / name, newest) for name in PROGRAMS]


def _build_one(name: str, target: Path, newest_source: float) -> Path:
    if target.exists() and target.stat().st_mtime >= newest_source:
        return target
    compiler.compile_c(SOURCES / f"{name}.c", target, _FLAGS)
    return target
