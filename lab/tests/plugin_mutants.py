# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plugins with a deliberate mistake, built from copies of the lab (scripts/mutant)."""

import subprocess
from pathlib import Path

from trapless_lab import artifacts
from trapless_lab.plugins import plugin

ROOT = Path(__file__).resolve().parents[2]


def build(mutant: str, name: str, *, architecture: str = "x86") -> Path:
    """Return a plugin out of a copy in which a mistake was made."""
    copy = artifacts.build_dir() / "lab" / "mutants" / mutant / "source"
    copy.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([ROOT / "scripts" / "mutant", "lab", copy, mutant], check=True)
    return plugin.build(name, copy / plugin.SOURCES.relative_to(ROOT), architecture=architecture)
