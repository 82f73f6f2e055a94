# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The small C programs that run in the guest: their sources, the machines that carry them, their builds.

Each lies with its owner: programs of several systems in the lab's guest/, those of one system's experiments
in that system's room, those of its tests only in the tests' own folder.

Invariant: a machine carries the programs that its steps name, the programs that these run, and no others. A
binary newer than every source is never rebuilt, and a failed or interrupted build leaves no binary behind.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .. import artifacts, compiler
from . import initramfs
from .initramfs import File, Link

SOURCES = artifacts.PACKAGE / "guest"
INIT = SOURCES / "init"
MARK = "mark"
"""The programs that init itself runs."""

_DIRTY = artifacts.PACKAGE / "dirty" / "guest"
# Headers of the markers that the plugins look for.
_MARKERS = artifacts.PACKAGE / "plugins"

# Static, so that the cost of a process does not depend on the host's dynamic loader.
_FLAGS = ("-O2", "-static", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class _Folder:
    """Sources of programs, each a file; a name in the guest is the prefix and the file's.

    ``headers`` are the folders that they include from besides their own.
    """

    path: Path
    headers: tuple[Path, ...]
    prefix: str = ""


_FOLDERS = (
    _Folder(SOURCES, (_MARKERS,)),
    _Folder(_DIRTY, (SOURCES, artifacts.DIRTY_ABI), "dirty"),
    _Folder(artifacts.tests("pagetable") / "guest", (SOURCES,)),
    _Folder(artifacts.tests("dirty") / "guest", (_DIRTY, SOURCES, artifacts.DIRTY_ABI), "dirty"),
)

_WORD = re.compile(r"[\w.-]+")
# Where a shell looks for a command: at the beginning, and behind what separates or introduces one.
_COMMAND = re.compile(r"(?:^|[;&|(\n])\s*(?:(?:!|do|then|else|exec)\s+)*([\w.-]+)")
_PATH = re.compile(r'"/bin/(\w+)"')


@cache
def _known() -> dict[str, tuple[Path, _Folder]]:
    found: dict[str, tuple[Path, _Folder]] = {}
    for folder in _FOLDERS:
        for source in sorted(folder.path.glob("*.c")):
            name = f"{folder.prefix}{source.stem}"
            if name in found:
                raise ValueError(f"two guest programs are called {name}: {source}, {found[name][0]}")
            found[name] = source, folder
    return found


def names() -> list[str]:
    """Return the names of all programs."""
    return sorted(_known())


def source(name: str) -> Path:
    """Return a program's source file."""
    return _known()[name][0]


def named(commands: Iterable[str]) -> list[str]:
    """Return the programs whose names are words of some shell commands, sorted."""
    words = {word for command in commands for word in _WORD.findall(command)}
    return sorted(words & _known().keys())


def started(command: str) -> list[str]:
    """Return the programs that a shell command starts; its arguments may be called like others."""
    return sorted(set(_COMMAND.findall(command)) & _known().keys())


def run_by(name: str) -> list[str]:
    """Return the programs that a program runs itself: its source has their paths."""
    return sorted(set(_PATH.findall(source(name).read_text())) & _known().keys())


def build(name: str, architecture: str = "x86") -> Path:
    """Return a program, compiled if it is out of date."""
    source, folder = _known()[name]
    place = "guest" if architecture == "x86" else f"guest-{architecture}"
    target = artifacts.build_dir() / "lab" / place / name
    headers = [header for place in (folder.path, *folder.headers) for header in place.glob("*.h")]
    newest = max(path.stat().st_mtime for path in (source, *headers))
    if not target.exists() or target.stat().st_mtime < newest:
        flags = (*_FLAGS, *(f"-I{place}" for place in folder.headers))
        compiler.compile_c(source, target, flags, architecture)
    return target


def tree(*names: str, architecture: str = "x86") -> dict[str, File | Link]:
    """Return the guest files of programs, and of those that they run."""
    needed = {*names, *(other for name in names for other in run_by(name))}
    built = [build(name, architecture) for name in sorted(needed)]
    return {path: entry for program in built for path, entry in initramfs.program(program).items()}
