# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What ``make -C dirty`` says on a host that lacks something: all of it, before it builds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DIRTY = Path(__file__).resolve().parents[1]
# What a shell script and make may take for granted.
BASE = ("cut", "dirname", "head", "make", "realpath", "sed", "sh", "sort", "uname")
BUILD = {"cargo": 'echo "cargo 1.999.0"', "cc": "exit 0"}
CHECK = dict.fromkeys(("gcc", "g++", "python3", "pkg-config", "groff", "nm", "readelf", "strings"), "exit 0")


def need(folder: Path, what: str, commands: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name in BASE:
        (folder / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    for name, script in commands.items():
        (folder / name).write_text(f"#!{shutil.which('sh')}\n{script}\n")
        (folder / name).chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "MAKE"))
    }
    return subprocess.run(
        ["sh", DIRTY / "need", what],
        env={**environment, "PATH": str(folder), "CC": "cc"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("what", "commands"), [("build", BUILD), ("check", {**BUILD, **CHECK})])
def test_nothing_else_is_needed(tmp_path: Path, what: str, commands: dict[str, str]) -> None:
    assert need(tmp_path, what, commands).returncode == 0


@pytest.mark.parametrize("missing", [*BUILD, *CHECK])
def test_each_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    commands = {name: script for name, script in {**BUILD, **CHECK}.items() if name != missing}
    said = need(tmp_path, "check", commands)
    assert said.returncode == 1 and f"\n  {missing}: " in said.stderr


def test_an_old_rust_is_named(tmp_path: Path) -> None:
    said = need(tmp_path, "build", {**BUILD, "cargo": 'echo "cargo 1.70.0"'})
    assert said.returncode == 1 and "this is 1.70.0" in said.stderr


def test_make_asks_before_it_builds(tmp_path: Path) -> None:
    """The Makefile itself gets as far without a toolchain."""
    need(tmp_path, "build", {})
    for name in ("bash", "ln", "mkdir"):
        (tmp_path / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    environment = {**os.environ, "PATH": str(tmp_path), "CARGO_TARGET_DIR": str(tmp_path / "target")}
    said = subprocess.run(["make", "-C", DIRTY], env=environment, capture_output=True, text=True, check=False)
    assert said.returncode and "cargo: Rust" in said.stderr and "cc: a C compiler" in said.stderr
    assert "not found" not in said.stderr
