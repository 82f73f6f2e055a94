# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The distribution of tests to workers: a file split between two would still pass, but boot twice."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TESTS = 'import pytest\n@pytest.mark.parametrize("n", range(6))\ndef test(n: int) -> None:\n    pass\n'


def _workers(folder: Path) -> dict[str, set[str]]:
    """Return which workers ran a part of each of two files."""
    for name in ("test_a.py", "test_b.py"):
        (folder / name).write_text(_TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "--rootdir", "."]
    ran = subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    )
    found: dict[str, set[str]] = defaultdict(set)
    for worker, file in re.findall(r"\[(gw\d)\].* PASSED (\w+\.py)::", ran.stdout):
        found[file].add(worker)
    assert found.keys() == {"test_a.py", "test_b.py"}, ran.stdout
    return found


def test_a_file_stays_together(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    assert [len(workers) for workers in _workers(tmp_path).values()] == [1, 1]


def test_negative_control_without_the_scheduler_a_file_is_split(tmp_path: Path) -> None:
    assert max(len(workers) for workers in _workers(tmp_path).values()) == 2


def test_what_comes_first_is_there() -> None:
    text = (ROOT / "conftest.py").read_text().partition("DEAREST = (")[2].partition("\n)")[0]
    files = set(re.findall(r'"(\w+\.py)', text))
    assert files <= {path.name for deep in ("", "*/") for path in ROOT.glob(f"*/tests/{deep}test_*.py")}
    assert len(files) > 10
