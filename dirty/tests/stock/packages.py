# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian packages whose files tests use, unpacked into the build tree.

Nothing is installed: an installed server would start a service on the user's machine.
"""

import subprocess
from pathlib import Path

import pytest

from trapless_lab import artifacts


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


def run(*command: str | Path, cwd: Path | None = None, user: int | None = None) -> None:
    """Run a program that must succeed."""
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=600, user=user)
