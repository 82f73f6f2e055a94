# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The version of the sources that an experiment is made from.

Invariant: an experiment's digest changes with every file that can change what it measures, committed or not:
the Python files that its own imports, whatever else the lab puts into machines, its system's folder, and what
systems share. Documents, tests, other systems and the minutes that an experiment says it takes cannot, and so
make no result stale.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from modulefinder import ModuleFinder
from pathlib import Path

from .. import artifacts
from ..errors import LabError
from ..experiment.experiment import Experiment

_PACKAGE = "lab/trapless_lab/"
_SHARED = ("kmod/", "Cargo.", "scripts/fetch-", "lab/requirements.txt")
_OF_TESTS = ("module", "guest")
"""Folders of tests from which experiments take a module or a program."""
_MINUTES = re.compile(rb"^    minutes=\d+,$", re.MULTILINE)
_NOT_MEASURED = (f"{_PACKAGE}papers/", f"{_PACKAGE}experiment/plots.py")


@dataclass(frozen=True)
class Sources:
    """The commit is for people; the digest of an experiment decides."""

    commit: str
    digests: Mapping[str, str]


def version(repository: Path, experiments: Iterable[Experiment]) -> Sources:
    """Return the version of a checkout as it is now."""
    commit = _git(repository, "rev-parse", "--short=12", "HEAD").decode().strip()
    contents = files(repository)
    digests = {}
    for one in experiments:
        imported = imports(one.run.__module__)
        found = [name for name in contents if counts(name, one.accelerator, imported)]
        digests[one.name] = digest(contents, found)[:16]
    return Sources(commit, digests)


def files(repository: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each file of a checkout as it is now, committed or not, in order.

    The minutes that an experiment says it takes are not in it. Raises LabError without git.
    """
    listed = _git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
    names = sorted({os.fsdecode(name) for name in listed if name})
    return {
        name: hashlib.sha256(_MINUTES.sub(b"", (repository / name).read_bytes())).hexdigest()
        for name in names
        if (repository / name).is_file()
    }


def digest(contents: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the SHA-256 of some of the files."""
    text = "".join(f"{name}\0{contents[name]}\n" for name in names)
    return hashlib.sha256(text.encode()).hexdigest()


def _git(repository: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise LabError(f"the version of the sources is unknown without git: {error}") from error


def counts(name: str, system: str, imported: frozenset[str]) -> bool:
    """Whether a file of the repository can change what an experiment of a system measures."""
    if name.endswith(".md") or name.startswith(_NOT_MEASURED):
        return False
    if name.startswith(_PACKAGE):
        return name.removeprefix(_PACKAGE) in imported or not name.endswith(".py")
    if name.startswith(f"{system}/tests/"):
        return name.startswith(tuple(f"{system}/tests/{folder}/" for folder in _OF_TESTS))
    return name.startswith((f"{system}/", *_SHARED)) or (system == "dirty" and name.startswith("cli/"))


def imports(module: str) -> frozenset[str]:
    """Return the files of the lab that a module imports, and what these import, relative to the package."""
    finder = ModuleFinder(path=[str(artifacts.PACKAGE.parent)])
    finder.import_hook(module)
    files = (getattr(found, "__file__", None) for found in finder.modules.values())
    return frozenset(
        str(Path(file).relative_to(artifacts.PACKAGE))
        for file in files
        if file and Path(file).is_relative_to(artifacts.PACKAGE)
    )
