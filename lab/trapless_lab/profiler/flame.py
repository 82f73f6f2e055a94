# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Flame graphs: stacks in the folded format, and drawn by inferno.

Invariant: the folded file holds every instruction of the profile once, in the format that every flame graph
tool reads: frames joined by semicolons, a space, a number.

inferno (crates.io) is the maintained descendant of the original script; Debian 12 packages neither. Cargo is
needed for dirty/ anyway, so it is built into the build tree for the first drawing.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from .. import artifacts, host, output
from ..errors import LabError
from .attribution import Profile

INFERNO = "0.12.8"


def folded(profile: Profile) -> Iterator[str]:
    """Return the lines of the folded file, in order of their frames."""
    for frames, instructions in sorted(profile.stacks.items()):
        yield f"{';'.join(frames)} {instructions}\n"


def draw(profile: Profile, title: str) -> bytes:
    """Return the flame graph as SVG."""
    drawn = subprocess.run(
        [program(), "--title", title, "--countname", "instructions", "--hash"],
        input="".join(folded(profile)).encode(),
        capture_output=True,
        check=False,
    )
    if drawn.returncode:
        raise LabError(f"inferno-flamegraph failed:\n{drawn.stderr.decode(errors='replace')}")
    return drawn.stdout


def write(target: Path, profile: Profile, title: str) -> None:
    """Draw it into a file, or keep it elsewhere if that cannot be done."""
    output.write_or_rescue(target, draw(profile, title))


def program() -> Path:
    """Return inferno-flamegraph, built on first use."""
    root = artifacts.build_dir() / "lab" / f"inferno-{INFERNO}"
    built = root / "bin" / "inferno-flamegraph"
    if not built.exists():
        # Cargo installs the programs when all of them are built.
        installed = subprocess.run(
            [
                *(host.tool("cargo", "cargo-web"), "install", "--quiet", "--locked", "--root", root),
                *("--no-default-features", "--features", "cli", "--bin", built.name),
                f"inferno@{INFERNO}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if installed.returncode:
            raise LabError(f"cannot install inferno {INFERNO} from crates.io:\n{installed.stderr}")
    return built
