# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The series for maintainers: fixes first, whole, and each patch applies to the packaged sources.

That each step compiles is tested by ``power/kernel/each-patch``, which ``make -C power check-long`` runs.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from complete import brought, complete, is_fix, patches, place, write
from trapless_lab import artifacts

POWER = Path(__file__).resolve().parents[2]

KERNELS = ("6.1", "6.12")
# Here only the fixes apply.
NEWEST = "7.3"
FIXES = {"6.1": 9, "6.12": 11, NEWEST: 11}
ALL = sorted(path for path in (POWER / "patches").glob("**/*.patch") if path.stat().st_size)
_TOUCHED = re.compile(r"^--- a/(\S+)$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# A function, an inline one of the header, or one in assembly.
_DEFINED = re.compile(
    r"^(?:static inline )?(?!static\b)\w[^;={}#]*?\b(kvmppc_bt_\w+)\([^;{]*\)\s*\{|SYM_FUNC_START\((\w+)\)",
    re.MULTILINE,
)
_OURS = re.compile(r"\b(kvmppc_bt_\w+)\(")
_OBJECT = re.compile(r"^\+\S+ \+= (\w+)\.o$", re.MULTILINE)


def unpack(archive: Path, series: str, into: Path) -> None:
    """Unpack the files of a packaged source that the series changes."""
    if not archive.exists():
        pytest.fail(f"{archive} is missing; install linux-source-{series}")
    touched = {name for path in patches(series) for name in _TOUCHED.findall(path.read_text())}
    names = [f"linux-source-*/{name}" for name in sorted(touched)]
    into.mkdir()
    options = ("-C", into, "--strip-components=1", "--wildcards", "-I", "xz -T2")
    subprocess.run(["tar", *options, "-xf", archive, *names], check=True)


def packaged(series: str) -> Path:
    return Path(f"/usr/src/linux-source-{series}.tar.xz")


def apply(patch: Path, tree: Path) -> subprocess.CompletedProcess[str]:
    options = ("-p1", "--fuzz=0", "--batch", "--forward", "--no-backup-if-mismatch")
    return subprocess.run(
        ["patch", *options, "-d", tree, "-i", patch],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_fixes_are_first_and_say_what_they_fix() -> None:
    for series, fixes in FIXES.items():
        listed = [path.read_text() for path in patches(series)]
        assert [is_fix(patch) for patch in listed] == [True] * fixes + [False] * (len(listed) - fixes)
        for patch in listed[:fixes]:
            assert re.search(r'^Fixes: [0-9a-f]{12} \(".+"\)$', patch, re.MULTILINE)
            assert "e500_bt" not in patch and "trapless" not in patch.lower().replace("maintainers@", "")
            assert not brought(patch)


@pytest.mark.not_fast("checkpatch reads all of the feature: half a minute")
@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}-{path.name[:4]}")
def test_a_patch_is_in_the_form_maintainers_take(path: Path) -> None:
    """With the files of ours that it brings."""
    checkpatch = artifacts.build_dir() / "power/kernel/source/scripts/checkpatch.pl"
    # Linux's history is not here.
    options = ("--no-tree", "--terse", "--show-types", "--ignore", "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID")
    # From standard input: checkpatch would check a file that git knows as a source.
    ran = subprocess.run(
        [checkpatch, *options, "-"],
        input=complete(path.read_text(), 1, 1),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^Signed-off-by: ", path.read_text(), re.MULTILINE)


def test_the_series_is_whole() -> None:
    assert [int(path.name[:4]) for path in patches("6.12")] == list(range(1, len(patches("6.12")) + 1))


def test_the_variants_replace_a_patch() -> None:
    names = {path.name for path in (POWER / "patches").glob("*.patch")}
    for series in ("6.1", NEWEST):
        variants = {path.name for path in (POWER / "patches" / series).iterdir()}
        assert variants and variants < names


@pytest.mark.parametrize("series", KERNELS)
def test_each_file_of_ours_comes_once_and_before_it_is_built(series: str) -> None:
    come: list[str] = []
    for path in patches(series):
        patch = path.read_text()
        come += brought(patch)
        for name in _OBJECT.findall(patch):
            assert {f"kvm/{name}.c", f"kvm/{name}.S"} & set(come), f"{path.name} builds {name}"
    ours = [path for part in ("kvm", "driver") for path in (POWER / part).iterdir()]
    assert sorted(come) == sorted(f"{path.parent.name}/{path.name}" for path in ours)


def called_too_early(listed: list[Path]) -> dict[str, set[str]]:
    """Return patch -> functions of ours that it, or a file it brings, calls and that no file has by then."""
    there: set[str] = set()
    early: dict[str, set[str]] = {}
    for path in listed:
        patch = path.read_text()
        sources = [_COMMENT.sub("", (POWER / ours).read_text()) for ours in brought(patch)]
        there |= {name for source in sources for found in _DEFINED.findall(source) for name in found if name}
        if any(ours.endswith("e500_bt.h") for ours in brought(patch)):
            continue  # it declares what is still to come
        added = "\n".join(line[1:] for line in patch.splitlines() if line.startswith("+"))
        used = {name for text in (added, *sources) for name in _OURS.findall(text)}
        if used - there:
            early[path.name] = used - there
    return early


@pytest.mark.parametrize("series", KERNELS)
def test_no_patch_calls_what_a_later_one_brings(series: str) -> None:
    """As the linker sees it; power/kernel/each-patch compiles each, which takes long."""
    listed = patches(series)
    assert called_too_early(listed) == {}
    # What one brings is missed where it is called, and nowhere else: negative control.
    late = next(path for path in listed if "kvm/e500_bt_site.c" in brought(path.read_text()))
    found = called_too_early([path for path in listed if path != late])
    assert "kvmppc_bt_patch_code" in set().union(*found.values()) and late.name not in found


@pytest.mark.not_fast("unpacks a source of 150 MB for each kernel: 10 s of a processor")
@pytest.mark.parametrize("series", KERNELS)
def test_the_series_applies_and_each_fix_alone(series: str, tmp_path: Path) -> None:
    stock = tmp_path / "stock"
    unpack(packaged(series), series, stock)
    whole = shutil.copytree(stock, tmp_path / "whole")
    for patch in write(series, tmp_path / "series"):
        applied = apply(patch, whole)
        assert applied.returncode == 0, f"{patch.name}: {applied.stdout}"
    for path in patches(series):
        for ours in brought(path.read_text()):
            assert (whole / place(ours)).read_bytes() == (POWER / ours).read_bytes()
    each_alone(series, stock, tmp_path)


def each_alone(series: str, stock: Path, tmp_path: Path) -> None:
    for patch in write(series, tmp_path / "fixes", only_fixes=True):
        alone = shutil.copytree(stock, tmp_path / patch.name[:4])
        applied = apply(patch, alone)
        assert applied.returncode == 0, f"{patch.name}: {applied.stdout}"
        # And not twice: negative control.
        assert apply(patch, alone).returncode != 0


@pytest.mark.long("fetches 170 MB: Debian's newest source of Linux")
def test_the_fixes_apply_to_the_newest_source(tmp_path: Path) -> None:
    source = artifacts.build_dir() / "linux" / "newest-source"
    subprocess.run([POWER.parent / "scripts/fetch-linux-source", source], check=True)
    unpack(source / "linux-source.tar.xz", NEWEST, tmp_path / "stock")
    each_alone(NEWEST, tmp_path / "stock", tmp_path)
    for patch in write(NEWEST, tmp_path / "series", only_fixes=True):
        applied = apply(patch, tmp_path / "stock")
        assert applied.returncode == 0, f"{patch.name}: {applied.stdout}"
