# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The documented loop on programs that others wrote: while they are stopped, image and memory are compared.

What it cannot see: a page that was missed and written again before it was compared, and memory that is
shared with other processes, of which these back ends do not promise to report all writes.
"""

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import stock_programs
from stock_programs import Program
from trapless_lab import artifacts

pytestmark = pytest.mark.long(
    "needs 500 MB of other people's programs; the oracle's own program writes in the same ways"
)

UNPRIVILEGED = Path("/proc/sys/vm/unprivileged_userfaultfd")
PROGRAMS: dict[str, Callable[[], AbstractContextManager[Program]]] = {
    "redis": stock_programs.redis_written,
    "postgres": stock_programs.postgres,
    "jvm": stock_programs.jvm,
    "node": stock_programs.node,
}


def _attach(
    program: Program, backend: str, seconds: int, oracle: Path | None = None, mutant: str = ""
) -> dict[str, Any]:
    oracle = oracle or artifacts.program("dirty-oracle")
    limits = ["--seconds", str(seconds), "--images", "20"]
    command: list[str | Path] = [oracle, "attach", str(program.pid), "--backend", backend, "--json", *limits]
    environment = {**os.environ, "DIRTY_MUTANT": mutant} if mutant else dict(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    (row,) = json.loads(done.stdout)["rows"]
    assert "done" in row["verdict"], row
    outcome: dict[str, Any] = row["verdict"]["done"]
    return outcome


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["uffd-async", "uffd-sync"])
def test_no_private_page_is_missed(name: str, backend: str) -> None:
    if name == "postgres" and backend == "uffd-sync" and UNPRIVILEGED.read_text().strip() == "0":
        pytest.skip(f"no userfaultfd for the kernel's writes without privilege: {UNPRIVILEGED} is 0")
    with PROGRAMS[name]() as program:
        outcome = _attach(program, backend, 20)
        print(name, backend, outcome)
        assert outcome["missed"] == 0 and not outcome["failures"], outcome
        # It did write, and was tracked, not doubted: else this test says nothing.
        assert outcome["pages"] > 1000 and outcome["collects"] > 50, outcome


def test_a_tracker_that_reports_each_page_only_once_is_caught() -> None:
    mutants = artifacts.build_dir() / "dirty/mutants/rust/release"
    with stock_programs.node() as program:
        outcome = _attach(program, "uffd-async", 5, oracle=mutants / "dirty-oracle", mutant="libdirty-rearm")
        assert outcome["missed"] > 0, outcome
