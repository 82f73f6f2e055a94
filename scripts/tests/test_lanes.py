# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Makefile's two lanes: a failure in either is a failure of the whole, and is named."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = """
good:
\t@true
bad:
\t@echo "workers $(workers), unless $(unless)"; false
probe:
\t@$(call beside,{left},{right})
"""
QUOTED = 'bad workers="-n 2" unless=x'


def lanes(left: str, right: str) -> subprocess.CompletedProcess[str]:
    evaluated = TARGETS.format(left=left, right=right)
    return subprocess.run(
        ["make", "--no-print-directory", "--eval", evaluated, "probe"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_lanes_that_hold() -> None:
    assert lanes("good", "good").returncode == 0


@pytest.mark.parametrize(
    ("left", "right"), [("bad", "good"), ("good", "bad"), ("good", QUOTED), (QUOTED, "good"), ("bad", "bad")]
)
def test_a_lane_that_fails_is_named(left: str, right: str) -> None:
    done = lanes(left, right)
    assert done.returncode != 0 and "check: failed: one of " in done.stderr
    assert "bad" in done.stderr.rpartition("one of ")[2]


def test_variables_reach_their_lane() -> None:
    assert "workers -n 2, unless x" in lanes("good", QUOTED).stdout
