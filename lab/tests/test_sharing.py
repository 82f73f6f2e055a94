# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The distribution of tests to workers: a file split between two would still pass, but boot twice."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TESTS = 'import pytest\n@pytest.mark.parametrize("n", range(6))\ndef test(n: int) -> None:\n    pass\n'


def _workers(folder: Path, names: Sequence[str] = ("test_a.py", "test_b.py")) -> dict[str, set[str]]:
    """Return which workers ran a part of each of these files, in the order in which they were begun."""
    for name in names:
        (folder / name).write_text(_TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "--rootdir", "."]
    ran = subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    )
    found: dict[str, set[str]] = defaultdict(set)
    for worker, file in re.findall(r"\[(gw\d)\].* PASSED (\w+\.py)::", ran.stdout):
        found[file].add(worker)
    assert found.keys() == set(names), ran.stdout
    return found


def test_a_file_stays_together(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    assert [len(workers) for workers in _workers(tmp_path).values()] == [1, 1]


def test_negative_control_without_the_scheduler_a_file_is_split(tmp_path: Path) -> None:
    assert max(len(workers) for workers in _workers(tmp_path).values()) == 2


def test_one_worker_begins_at_the_beginning_and_the_other_at_the_end(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    found = _workers(tmp_path, ("test_smp.py", "test_a.py", "test_b.py", "test_tool.py", "test_verify.py"))
    first = {worker: file for file, workers in reversed(found.items()) for worker in workers}
    assert first == {"gw0": "test_smp.py", "gw1": "test_verify.py"}


def test_what_comes_first_is_there() -> None:
    text = (ROOT / "conftest.py").read_text().partition("TWO_PROCESSORS = (")[2].partition("\nFIRST")[0]
    files = set(re.findall(r'"(\w+\.py)', text))
    assert files <= {path.name for deep in ("", "*/") for path in ROOT.glob(f"*/tests/{deep}test_*.py")}
    assert len(files) > 10
