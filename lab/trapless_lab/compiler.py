# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compiles the lab's own C files, one at a time.

Invariant: a failed or interrupted build never leaves a target behind, nor one that is half written.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import host
from .errors import LabError


def compile_c(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Make ``target`` out of one file; directories are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")  # two labs may build at once
    compiled = subprocess.run(
        [host.tool("gcc", "gcc"), *flags, "-o", fresh, source], capture_output=True, text=True, check=False
    )
    if compiled.returncode:
        raise LabError(f"cannot compile {source.name} (is libc6-dev installed?):\n{compiled.stderr}")
    fresh.replace(target)
