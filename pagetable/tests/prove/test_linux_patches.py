# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The patches for Linux's sources apply to Debian's package, one by one, in the kernel's own style.

That each compiles, boots and keeps memory is tested by machine/test_linux_series.py.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SERIES = ROOT / "pagetable" / "linux-source"
PATCHES = sorted((SERIES / "patches").glob("*.patch"))
(FIX,) = (SERIES / "fix").glob("*.patch")
MISTAKES = sorted((SERIES / "mistakes").glob("*.patch"))
TARBALL = Path("/usr/src/linux-source-6.12.tar.xz")
CHECKPATCH = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")

# Debian's package has no history in which the commit that Fixes: names could be found.
IGNORED = "UNKNOWN_COMMIT_ID"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=True, timeout=300
    )


def touched(patch: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that any patch changes, and checkpatch, from the package. Unpacking takes 15 s."""
    tree = tmp_path_factory.mktemp("linux")
    files = {*(f"scripts/{name}" for name in CHECKPATCH)}
    files |= {name for patch in [*PATCHES, FIX, *MISTAKES] for name in touched(patch)}
    result = run(
        *("tar", "--strip-components=1", "--occurrence=1", "-xJf", TARBALL),
        *(f"linux-source-6.12/{name}" for name in sorted(files)),
        cwd=tree,
    )
    assert result.returncode == 0, result.stderr
    return tree


@pytest.fixture
def tree(pristine: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "linux"
    assert run("cp", "-a", pristine, copy, cwd=tmp_path).returncode == 0
    return copy


def applies(patch: Path, tree: Path) -> str:
    """Apply a patch; return what is wrong. Offsets are allowed, other context is not."""
    result = run("patch", "-p1", "-f", "--fuzz=0", "--no-backup-if-mismatch", "-i", patch, cwd=tree)
    return result.stdout if result.returncode else ""


def test_the_series_is_whole() -> None:
    assert [int(patch.name[:4]) for patch in PATCHES] == list(range(1, len(PATCHES) + 1))
    for number, patch in enumerate(PATCHES, 1):
        head = patch.read_text().split("\n---\n")[0]
        assert f"Subject: [PATCH {number}/{len(PATCHES)}] " in head
        assert re.search(r"^Signed-off-by: .+ <.+@.+>$", head, re.MULTILINE)
    letter = (SERIES / "cover-letter.txt").read_text()
    assert f"[PATCH 0/{len(PATCHES)}]" in letter
    for patch in PATCHES:
        subject = re.search(r"^Subject: \[.*?\] ((?:.|\n )+)", patch.read_text(), re.MULTILINE)
        assert subject and subject[1].replace("\n ", " ") in letter


def test_each_patch_applies_after_the_one_before(tree: Path) -> None:
    for patch in PATCHES:
        assert applies(patch, tree) == ""


def test_the_fix_applies_alone_and_before_the_series(tree: Path) -> None:
    assert applies(FIX, tree) == ""
    for patch in PATCHES:
        assert applies(patch, tree) == ""
    assert re.search(r"^Fixes: [0-9a-f]{12} \(\".+\"\)$", FIX.read_text(), re.MULTILINE)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda patch: patch.stem)
def test_a_mistake_applies_to_the_series(mistake: Path, tree: Path) -> None:
    for patch in [*PATCHES, mistake]:
        assert applies(patch, tree) == ""


@pytest.mark.parametrize("patch", [*PATCHES, FIX], ids=lambda patch: f"{patch.parent.name}-{patch.name[:4]}")
def test_a_patch_has_the_style_of_the_kernel(patch: Path, pristine: Path) -> None:
    result = run(
        *("scripts/checkpatch.pl", "--strict", "--no-tree", "--terse", "--show-types"),
        *("--ignore", IGNORED, patch),
        cwd=pristine,
    )
    assert result.returncode == 0, result.stdout


def test_negative_control_a_damaged_patch_does_not_apply(tree: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.patch"
    text = PATCHES[0].read_text()
    assert " \tint i, nr;\n" in text
    damaged.write_text(text.replace(" \tint i, nr;\n", " \tint j, nr;\n"))
    assert "FAILED" in applies(damaged, tree)


def test_negative_control_another_style_is_seen(tree: Path, tmp_path: Path) -> None:
    sloppy = tmp_path / "sloppy.patch"
    text = PATCHES[2].read_text()
    assert "+\tif (!xen_page_pinned" in text
    sloppy.write_text(text.replace("+\tif (!xen_page_pinned", "+    if(!xen_page_pinned"))
    result = run("scripts/checkpatch.pl", "--strict", "--no-tree", "--terse", sloppy, cwd=tree)
    assert result.returncode != 0
