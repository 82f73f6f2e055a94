# SPDX-License-Identifier: Apache-2.0 OR MIT
"""bdwgc with the patches of ``bdwgc-source``, held by bdwgc's own tests.

Its source is Debian 12's. The witness is the collector's own, for developers: built with checksums it sums up
every page at each collection, and says so if one has changed that it was not told of.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from packages import run, upstream

pytestmark = pytest.mark.long("builds a collector twice and runs its tests: a minute of a processor")

DIRTY = Path(__file__).resolve().parents[2]
PATCHES = sorted((DIRTY / "bdwgc-source" / "patches").glob("*.patch"))
FORGET = DIRTY / "tests" / "mutants" / "bdwgc-forget.patch"

CHOSEN = "Using userfaultfd and PAGEMAP_SCAN"
TRACKED = {"GC_PRINT_STATS": "1", "GC_ENABLE_INCREMENTAL": "1"}
# What no library or program here needs is not built.
COMMON = ("--disable-dependency-tracking", "--disable-shared", "--enable-static", "--with-libatomic-ops=none")
# Of bdwgc: pages are summed up only without threads, and if none is unmapped.
CHECKSUMS = ("--disable-threads", "--disable-munmap", "--enable-checksums", "--enable-gc-assertions")
MISSED = re.compile(r"^Found \d+ dirty bit errors", re.MULTILINE)
LASTS = 1200.0


def _patch(source: Path, *patches: Path) -> None:
    for patch in patches:
        run("patch", "-d", source, "-p1", "--fuzz=0", "--batch", "--forward", "--input", patch)


def _tested(folder: Path, *options: str) -> Path:
    """Build in a folder, which may be copied as a whole, and run the stock tests. Skips where they cannot be.

    Their output stays there.
    """
    build = folder / "build"
    build.mkdir()
    run("cp", "-a", upstream("libgc", "bookworm"), folder / "source")
    _patch(folder / "source", *PATCHES)
    run("../source/configure", *COMMON, *options, "CFLAGS=-O2 -Wall -Wextra -Werror=unused", cwd=build)
    done = _make(build, "check", **TRACKED)
    assert done.returncode == 0 and "\n# FAIL:  0\n" in done.stdout, done.stdout[-5000:]
    if "Asynchronous userfaultfd is not supported" in _logs(build)["gctest"]:
        pytest.skip("this kernel has no asynchronous userfaultfd (Linux 6.7)")
    return build


def _make(build: Path, *targets: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _run("make", *targets, build=build, **environment)


def _run(*command: str, build: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=build,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LASTS,
        check=False,
    )


def _logs(build: Path) -> dict[str, str]:
    """Return what each of bdwgc's tests printed, by its name."""
    return {path.stem: path.read_text(errors="replace") for path in build.glob("*test*.log")}


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a build as Debian's: with threads, and memory given back."""
    return _tested(tmp_path_factory.mktemp("threads"))


@pytest.fixture(scope="module")
def checksums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a build that has the witness."""
    return _tested(tmp_path_factory.mktemp("checksums"), *CHECKSUMS)


def _used(logs: dict[str, str]) -> None:
    used = [name for name, text in logs.items() if CHOSEN in text]
    print(len(used), "of", len(logs), "tests with it:", *sorted(used))
    assert "gctest" in used and len(used) >= 9


def test_the_stock_tests_pass_with_threads(threads: Path) -> None:
    logs = _logs(threads)
    _used(logs)
    assert not [name for name, text in logs.items() if "pages appear dirty" in text]


def test_the_witness_finds_no_change_that_was_missed(checksums: Path) -> None:
    logs = _logs(checksums)
    _used(logs)
    assert not [name for name, text in logs.items() if MISSED.search(text) or "LOST" in text]
    clean = [int(count) for count in re.findall(r"Checked (\d+) clean", logs["gctest"])]
    print("pages found clean and unchanged:", sum(clean))
    assert len(clean) > 50 and sum(clean) > 10_000


def test_a_forgotten_page_is_found(checksums: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    run("cp", "-a", checksums.parent, copy)
    _patch(copy / "source", FORGET)
    made = _make(copy / "build", "gctest")
    assert made.returncode == 0, made.stdout[-3000:]
    done = _run("./gctest", build=copy / "build", **TRACKED)
    found = MISSED.findall(done.stdout)
    print(len(found), "collections in which pages were missed; exit status", done.returncode)
    assert found and CHOSEN in done.stdout


def test_without_descriptors_the_next_way_is_taken(threads: Path) -> None:
    # One descriptor is left: enough for a userfaultfd, or for the pagemap, but not for both.
    done = _run("sh", "-c", "ulimit -n 4 && exec ./gctest", build=threads, **TRACKED)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Asynchronous userfaultfd is not supported" in done.stdout
    assert "Emulating dirty bits with mprotect/signals" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="runs as another user")
def test_no_privilege_is_needed(threads: Path) -> None:
    nobody = ("setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all")
    done = _run(*nobody, str(threads / "smashtest"), build=Path("/"), **TRACKED)
    assert done.returncode == 0 and CHOSEN in done.stdout, done.stdout
