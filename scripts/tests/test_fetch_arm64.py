# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What scripts/fetch-arm64 leaves behind when it cannot fetch, with an apt-get that only says so.

Not checked: what it unpacks, which the machine tests boot.
"""

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def _fetch(tmp_path: Path, apt_get: str, compiler: str = "1") -> subprocess.CompletedProcess[str]:
    """Fetch into tmp_path/debian, on a host with this apt-get and this version of the compiler."""
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    for name, script in (("apt-get", apt_get), ("dpkg-query", f"printf %s {compiler}")):
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)
    return subprocess.run(
        [REPOSITORY / "scripts/fetch-arm64", tmp_path / "debian"],
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


OFFLINE = 'case "$*" in *indextargets*) echo mirror ;; *) echo no route; exit 100 ;; esac'


def test_a_host_without_a_mirror_is_told_so(tmp_path: Path) -> None:
    done = _fetch(tmp_path, "exit 0")
    assert done.returncode == 1 and "no mirror" in done.stderr


def test_nothing_is_left_behind_when_the_mirror_does_not_answer(tmp_path: Path) -> None:
    done = _fetch(tmp_path, OFFLINE)
    assert done.returncode == 1 and "no route" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_what_is_there_is_kept_until_there_is_another_compiler(tmp_path: Path) -> None:
    folder = tmp_path / "debian"
    folder.mkdir()
    (folder / "compiler").write_text("1\n")
    assert _fetch(tmp_path, "exit 9").returncode == 0
    assert _fetch(tmp_path, OFFLINE, compiler="2").returncode == 1
    assert (folder / "compiler").read_text() == "1\n"
