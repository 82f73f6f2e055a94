# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compiles the lab's own C files, one at a time.

Invariant: a failed or interrupted build never leaves a target behind, not even a partial one.
"""

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from . import host
from .errors import LabError


def unique(target: Path) -> Path:
    """Return a temporary path beside ``target``, unique to this process and thread."""
    return target.with_suffix(f".{os.getpid()}-{threading.get_ident()}")


_COMPILERS = {"x86": ("gcc", "gcc"), "arm64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")}


def compile_c(source: Path, target: Path, flags: Sequence[str], architecture: str = "x86") -> None:
    """Compile ``target`` from one file; its directory is created."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = unique(target)
    compiled = subprocess.run(
        [host.tool(*_COMPILERS[architecture]), *flags, "-o", fresh, source],
        capture_output=True,
        text=True,
        check=False,
    )
    if compiled.returncode:
        raise LabError(f"cannot compile {source.name} (is libc6-dev installed?):\n{compiled.stderr}")
    fresh.replace(target)
