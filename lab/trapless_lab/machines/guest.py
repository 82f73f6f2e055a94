# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The small C programs that run in the guest: where their sources are, who carries them, how they are made.

Each lies with its owner: what several systems use in the lab's guest/, what one system's experiments use in
that system's room, what its tests alone use in the tests' own folder.

Invariant: a machine carries the programs that its steps name, with what these run, and no other. A binary
newer than every source is never rebuilt, and a failed or interrupted build never leaves a binary behind.
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
"""What init itself runs."""

_DIRTY = artifacts.PACKAGE / "dirty" / "guest"
# Of the markers that the plugins look for.
_MARKERS = artifacts.PACKAGE / "plugins"

# Static, so that what a process costs does not depend on the host's dynamic loader.
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
_COMMAND = re.compile(r"(?:^|[;&|(\n!]|\b(?:do|then|else|exec)\s)\s*([\w.-]+)")
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
    """Return what all programs are called."""
    return sorted(_known())


def source(name: str) -> Path:
    """Return the file that a program is made of."""
    return _known()[name][0]


def named(commands: Iterable[str]) -> list[str]:
    """Return the programs whose names are words of some shell commands, sorted."""
    words = {word for command in commands for word in _WORD.findall(command)}
    return sorted(words & _known().keys())


def started(command: str) -> list[str]:
    """Return the programs that a shell command starts by their names; its arguments may be called like others."""
    return sorted(set(_COMMAND.findall(command)) & _known().keys())


def run_by(name: str) -> list[str]:
    """Return the programs that a program runs itself: its source has their paths."""
    return sorted(set(_PATH.findall(source(name).read_text())) & _known().keys())


def build(name: str) -> Path:
    """Return a program, compiled if it is out of date."""
    source, folder = _known()[name]
    target = artifacts.build_dir() / "lab" / "guest" / name
    headers = [header for place in (folder.path, *folder.headers) for header in place.glob("*.h")]
    newest = max(path.stat().st_mtime for path in (source, *headers))
    if not target.exists() or target.stat().st_mtime < newest:
        compiler.compile_c(source, target, (*_FLAGS, *(f"-I{place}" for place in folder.headers)))
    return target


def tree(*names: str) -> dict[str, File | Link]:
    """Return programs, and those that they run, as a guest finds them on its path."""
    needed = {*names, *(other for name in names for other in run_by(name))}
    return {path: entry for name in sorted(needed) for path, entry in initramfs.program(build(name)).items()}
