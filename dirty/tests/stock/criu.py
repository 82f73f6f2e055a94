# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stock criu under ``trapless criu`` on this kernel: a criu that runs here, and chains made by it.

Debian 12's criu does not know the vDSO of newer kernels. Debian 13's runs on Debian 12 by Debian 13's own
loader and libraries, which are unpacked and not installed.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from packages import debian13
from trapless_lab import artifacts
from trapless_lab.dirty.criu import CHAIN, Outcome
from trapless_lab.machines import guest

LASTS = 240.0  # seconds that a chain may take


def program(folder: Path) -> Path:
    """Return Debian 13's criu as a script in ``folder``. Skips the test where apt does not have it."""
    tree = debian13("criu")
    script, libraries = folder / "criu", tree / "usr/lib/x86_64-linux-gnu"
    loader = f"{tree}/usr/lib64/ld-linux-x86-64.so.2 --library-path {libraries}"
    script.write_text(f'#!/bin/sh\nexec {loader} {tree}/usr/sbin/criu "$@"\n')
    script.chmod(0o755)
    return script


def working(folder: Path) -> Path:
    """Return a criu that works on this kernel. Skips the test where there is none."""
    found = program(folder)
    said = subprocess.run([found, "check"], capture_output=True, text=True, check=False)
    if said.returncode:
        pytest.skip(f"criu does not work here: {said.stderr}")
    return found


def chain(
    folder: Path,
    command: Sequence[str | Path],
    tree: str,
    *,
    pause: float = 0.3,
    processors: str = "",
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a chain in ``folder`` with a tree of processes, by a command that runs criu."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("dirtychurn", "dirtymemory"):
        (tools / name).symlink_to(guest.build(name))
    pinned: list[str | Path] = ["taskset", "-c", processors] if processors else []
    line = [*pinned, tools / "dirtymemory", "run", CHAIN, folder / "chain", str(pause), tree, *command]
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(
        line,
        env={**os.environ, "PATH": path, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LASTS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout)


def trapless(socket: Path, criu: Path, *, backend: str = "", mutant: bool = False) -> list[str | Path]:
    """Return the command for criu under trapless, with a holder at ``socket``."""
    own = artifacts.mutant("dirty", "rust", "release/trapless") if mutant else artifacts.program("trapless")
    chosen = ["--backend", backend] if backend else []
    return [own, "criu", "--hold", socket, *chosen, "--program", criu]
