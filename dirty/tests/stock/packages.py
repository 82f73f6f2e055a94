# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian packages whose files tests use, unpacked into the build tree.

Nothing is installed: an installed server would start a service on the user's machine.
"""

import getpass
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from trapless_lab import artifacts

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def unpacked(package: str) -> Path:
    """Return a folder with the files of a Debian package. Skips the test where apt does not have it."""
    cache = artifacts.build_dir() / "dirty" / "packages"
    tree = cache / package
    if not tree.exists():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            run("apt-get", "download", package, cwd=cache)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"apt has no {package} here: {error}")
        fresh = cache / f"{package}.fresh"
        run("dpkg-deb", "--extract", max(cache.glob(f"{package}_*.deb")), fresh)
        fresh.rename(tree)  # all of it, or nothing
    return tree


def debian13(package: str) -> Path:
    """Return a folder with the files of a package of Debian 13 and of all that it depends on.

    They come from the mirror that apt uses on this host, by lists of their own, checked against Debian's
    keys. Skips the test where they do not.
    """
    cache = artifacts.build_dir() / "dirty" / "packages"
    tree = cache / f"{package}-debian13"
    if not tree.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            try:
                fresh = _fetch_debian13(package, Path(folder))
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"apt has no {package} of Debian 13 here: {error}")
            fresh.rename(tree)  # all of it, or nothing
    return tree


def upstream(package: str, suite: str) -> Path:
    """Return a folder with the upstream source of a package of Debian, as its authors released it.

    From the same mirror, and checked in the same way. Skips the test where it is not there.
    """
    cache = artifacts.build_dir() / "dirty" / "packages"
    tree = cache / f"{package}-{suite}-source"
    if not tree.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            try:
                apt = _apt(Path(folder), "deb-src", suite)
                wanted = ("source", "--tar-only", "--download-only", package)
                run("apt-get", *apt, *wanted, cwd=Path(folder) / "debs")
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"apt has no source of {package} of {suite} here: {error}")
            (archive,) = (Path(folder) / "debs").glob("*.orig.tar.*")
            fresh = Path(folder) / "tree"
            run("tar", "--extract", "--file", archive, "--directory", fresh, "--strip-components=1")
            fresh.rename(tree)  # all of it, or nothing
    return tree


def _apt(folder: Path, kind: str, suite: str) -> list[str]:
    """Return apt's settings for lists of their own in ``folder``, which they bring up to date."""
    mirrors = _output(
        *("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"),
        *("Origin: Debian", "Label: Debian", "Component: main"),
    ).split()
    if not mirrors or not KEYS.exists():
        raise OSError("no mirror of Debian, or no debian-archive-keyring")
    for name in ("lists/partial", "cache/archives/partial", "debs", "tree"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"{kind} [signed-by={KEYS}] {mirrors[0]} {suite} main\n")
    settings: dict[str, str | Path] = {
        "APT::Sandbox::User": getpass.getuser(),
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
    }
    apt = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run("apt-get", *apt, "update")
    return apt


def _fetch_debian13(package: str, folder: Path) -> Path:
    apt = _apt(folder, "deb", "trixie")
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    needed = _output("apt-cache", *apt, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), package)
    names = {line for line in needed.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", line)}
    run("apt-get", *apt, "download", *sorted(names), cwd=folder / "debs")
    for deb in (folder / "debs").glob("*.deb"):
        run("dpkg-deb", "--extract", deb, folder / "tree")
    return folder / "tree"


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def run(*command: str | Path, cwd: Path | None = None, user: int | None = None) -> None:
    """Run a program that must succeed."""
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=600, user=user)
