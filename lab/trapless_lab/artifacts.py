# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where the project's own build products are.

Invariant: nothing here builds them; a missing one is an error that says how to make it.
"""

import os
from pathlib import Path

from .errors import LabError


def build_dir() -> Path:
    """Return the build tree: $TRAPLESS_BUILD, or build/ of the repository this package lies in."""
    override = os.environ.get("TRAPLESS_BUILD")
    return Path(override) if override else Path(__file__).resolve().parents[2] / "build"


def payload(system: str, name: str) -> Path:
    """Return a hypervisor live-patch payload."""
    return _built(build_dir() / system / "xen" / f"{name}.livepatch")


def module(system: str, part: str, name: str) -> Path:
    """Return a Linux kernel module; ``part`` is the system's folder that it is built from."""
    return _built(build_dir() / system / part / f"{name}.ko")


def mutant(system: str, name: str, file: str) -> Path:
    """Return what was built with the deliberate mistake of SYSTEM/tests/mutants/NAME.patch."""
    return _built(build_dir() / system / "mutants" / name / file, f"make -C {system} mutants")


def power(part: str, name: str) -> Path:
    """Return what is built for the Power machines: of the kernel, the VMM or the guest."""
    return _built(build_dir() / "power" / part / name, "make power")


def _built(path: Path, how: str = "make") -> Path:
    if not path.exists():
        raise LabError(f"{path} is not built; run {how} in the repository (or set TRAPLESS_BUILD)")
    return path
