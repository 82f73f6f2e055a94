# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kernel's own selftests of soft-dirty, PAGEMAP_SCAN and userfaultfd, through the shim.

On this host, and in a machine.

They are built from Debian's package linux-source, which apt fetches into the build tree; nothing is
installed. Each test must say through the shim what it says without it; where the shim is what makes it
possible, and where it is known to refuse, the difference is written down here with its reason.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import module_steps
from packages import run, unpacked
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Link, program
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step

pytestmark = pytest.mark.long("fetches 150 MB, once; the shim's own tests hold the same answers")

PACKAGE = "linux-source-6.12"
MM = "tools/testing/selftests/mm"
# Of the source: the tests, what they include, and the interface that they were written for.
WANTED = (MM, "tools/testing/selftests/kselftest*", "mm/gup_test.h", "include/uapi/linux")
# Newer than the host's: only these, for the others name kernel-internal types.
HEADERS = ("fs.h", "fscrypt.h", "memfd.h", "mman.h", "mount.h", "userfaultfd.h")
COMMON = ("vm_util.c", "thp_settings.c")


@pytest.fixture(scope="module")
def source() -> Path:
    """Return the unpacked source of the tests."""
    cache = artifacts.build_dir() / "dirty" / "selftests"
    tree = cache / PACKAGE
    if not tree.exists():
        names = [f"{PACKAGE}/{name}" for name in WANTED]
        tarball = unpacked(PACKAGE) / f"usr/src/{PACKAGE}.tar.xz"
        fresh = cache / "fresh"
        fresh.mkdir(parents=True, exist_ok=True)
        run("tar", "--extract", "--file", tarball, "--directory", fresh, "--wildcards", *names)
        (fresh / PACKAGE).rename(tree)  # all of it, or nothing
    include = cache / "include" / "linux"
    include.mkdir(parents=True, exist_ok=True)
    for name in HEADERS:
        (include / name).write_bytes((tree / "include/uapi/linux" / name).read_bytes())
    return tree


def _build(source: Path, out: Path, name: str, *more: str, flags: Sequence[str] = ()) -> Path:
    """Compile a selftest. As a macro, __packed is in headers that an installed kernel does not hand out."""
    folder, program = source / MM, out / name
    options = ["-O2", "-w", "-D_GNU_SOURCE", "-D__packed=__attribute__((packed))", "-I..", *flags]
    options += ["-isystem", str(source.parent / "include")]
    own = out / f"{name}.o"
    run("gcc", *options, "-c", f"{name}.c", "-o", own, cwd=folder)
    common = [option for option in options if option not in flags]
    libraries = ("-lpthread", "-lrt", "-lm")
    run("gcc", *common, own, *COMMON, *more, "-o", program, *libraries, cwd=folder)
    return program


def _output(program: Path, *, through_shim: bool) -> str:
    shim = {
        "LD_PRELOAD": str(artifacts.program("libdirty_softdirty.so")),
        "LIBDIRTY_SOFTDIRTY": "force",
    }
    environment = {**os.environ, **(shim if through_shim else {})}
    # Some tests leave files where they are run.
    done = subprocess.run(
        [program], env=environment, cwd=program.parent, capture_output=True, text=True, timeout=600
    )
    return done.stdout


def _totals(output: str) -> dict[str, int]:
    """Return how many tests passed, failed and were skipped, by the test's own count."""
    last = re.findall(r"^# Totals: (.*)$", output, re.MULTILINE)
    assert last, output
    return {name: int(count) for name, count in re.findall(r"(\w+):(\d+)", last[-1])}


def test_soft_dirty(source: Path, tmp_path: Path) -> None:
    """The test looks into VmFlags of smaps first, which the shim does not answer: that look is left out."""
    has_it = tmp_path / "has_it.c"
    has_it.write_text("#include <stdbool.h>\nbool has_it(void);\nbool has_it(void) { return true; }\n")
    program = _build(source, tmp_path, "soft-dirty", str(has_it), flags=["-Dsoftdirty_supported=has_it"])
    with_it = _totals(_output(program, through_shim=True))
    # A host without free huge pages skips the two tests of those.
    assert with_it["fail"] == 0 and with_it["error"] == 0 and with_it["pass"] + with_it["skip"] == 15, with_it
    assert with_it["skip"] in (0, 2), with_it
    # The control: where the kernel does not have it, the same program fails without the shim.
    alone = _output(program, through_shim=False)
    if _totals(alone)["fail"] == 0:
        pytest.skip(f"{with_it['pass']} passed; this kernel has soft-dirty itself, so there is no control")


def test_madv_populate(source: Path, tmp_path: Path) -> None:
    program = _build(source, tmp_path, "madv_populate")
    totals = _totals(_output(program, through_shim=True))
    assert totals == _totals(_output(program, through_shim=False)) and totals["pass"] >= 16, totals


def test_userfaultfd(source: Path, tmp_path: Path) -> None:
    """The program's own userfaultfd works under the shim as without it, test by test."""
    program = _build(source, tmp_path, "uffd-unit-tests", "uffd-common.c")
    results = [_output(program, through_shim=shim) for shim in (False, True)]
    # On a busy host a race that a test waits for may not come about: it passes or is not there.
    assert all(", fail=0 " in result for result in results), results
    tested = [re.findall(r"^Testing .*\.\.\. (?:done|skipped)", result, re.MULTILINE) for result in results]
    assert tested[0] == tested[1] and len(tested[0]) > 30


def test_pagemap_ioctl(source: Path, tmp_path: Path) -> None:
    """Through the shim, which answers each of its scans, it says the same as without."""
    program = _build(source, tmp_path, "pagemap_ioctl")
    alone, through = (_output(program, through_shim=shim) for shim in (False, True))
    assert _totals(alone)["fail"] == 0, alone
    assert _totals(through) == _totals(alone), through


# By the module the shim answers what a garbage collector asks (dirty/shim/src/own.rs): what is asked about
# for the first time is dirty, and every page reads as present. So these expect "clean" or "not populated"
# too early; and uffd-unit-tests, which looks for a mark of its own in the pagemap, is run without the module.
EARLY = {
    "soft-dirty": {
        "Test test_simple",
        "Test test_hugepage huge page dirty bit",
        "Test test_mprotect-anon soft-dirty clear after clear_refs",
        "Test test_mprotect-anon soft-dirty clear after marking RO",
        "Test test_mprotect-anon soft-dirty clear after marking RW",
    },
    "madv_populate": {"range initially not populated", "range is not softdirty"},
}
SHIM = "LD_PRELOAD=/lib/shim.so LIBDIRTY_SOFTDIRTY="
BY_MODULE, BY_NOTHING = f"{SHIM}dbit,verbose ", f"{SHIM}force "


@pytest.mark.machine
def test_in_a_machine(source: Path, tmp_path: Path) -> None:
    """On Debian 12's kernel, by the module: nothing that was written reads clean."""
    shim = artifacts.program("libdirty_softdirty.so")
    files: dict[str, File | Link] = {**module_steps.module_files(), "/lib/shim.so": File(shim)}
    files |= {path: entry for path, entry in program(shim).items() if not path.startswith("/bin/")}
    for name, more in {"soft-dirty": [], "madv_populate": [], "uffd-unit-tests": ["uffd-common.c"]}.items():
        files |= program(_build(source, tmp_path, name, *more))

    def step(name: str, before: str = "") -> Step:
        return Step(before + name, f"cd /tmp; {before}{name} 2>&1", 600, expect=None)

    steps = [step(name, before) for name in EARLY for before in ("", BY_MODULE)]
    steps += [step("uffd-unit-tests", before) for before in ("", BY_NOTHING)]
    transcript = runner.run(MACHINES["bare-smp"], [module_steps.insmod(), *steps], files=files)
    for name, early in EARLY.items():
        alone, through = transcript[name].output, transcript[BY_MODULE + name].output
        assert _totals(alone)["fail"] == 0 and _totals(alone)["pass"] >= 15, alone
        assert "the own process is tracked by dbit" in through
        assert set(re.findall(r"^not ok \d+ (.*)$", through, re.MULTILINE)) == early, through
        assert sum(_totals(through).values()) == sum(_totals(alone).values()), through
    results = [transcript[before + "uffd-unit-tests"].output for before in ("", BY_NOTHING)]
    assert all(", fail=0 " in result for result in results), results
    assert transcript.kernel_warnings() == []
