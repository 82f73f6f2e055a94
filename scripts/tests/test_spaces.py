# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A path with a space, where kbuild builds nothing, is refused before anything is installed or built."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder that has the makefiles and nothing else."""
    for name in ("Makefile", "pagetable/Makefile", "power/Makefile", "kmod/place.mk", "kmod/kernels.mk"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("folder", "refused"), [("a checkout", True), ("checkout", False)])
def test_it_is_refused_at_once(folder: str, refused: bool, tmp_path: Path) -> None:
    done = make(tmp_path / folder, "help")
    assert (done.returncode != 0) == refused
    assert ("a path with a space" in done.stderr) == refused and ("make demo" in done.stdout) != refused


@pytest.mark.parametrize("system", ["pagetable", "power"])
def test_so_is_one_system(system: str, tmp_path: Path) -> None:
    """Nothing is run of what would be; elsewhere its makefile is read."""
    assert "a path with a space" in make(tmp_path / "a checkout", "-n", "-C", system, "clean").stderr
    assert not make(tmp_path / "checkout", "-n", "-C", system, "clean").stderr
