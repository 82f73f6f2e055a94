# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A checkout in a path with a space, where kbuild builds nothing, is refused before anything is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("folder", "refused"), [("a checkout", True), ("checkout", False)])
def test_it_is_refused_at_once(folder: str, refused: bool, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path / folder)
    done = subprocess.run(
        ["make", "help"], cwd=tmp_path / folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == refused
    assert ("a path with a space" in done.stderr) == refused and ("make demo" in done.stdout) != refused
