# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dirty-conformance in a stock Debian guest, which has soft-dirty bits: a bare loop of them and libdirty's.

What the bare loop misses is known, and is the control: the same cases must find the library good.
"""

import re
from dataclasses import dataclass

import pytest

import oracle_steps as oracle
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Tree, program
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.releases import ASYNC_WRITE_PROTECTION, INSTALLED

pytestmark = pytest.mark.machine

PLUGINS = "/lib/conformance"
BARE = f"--plugin {PLUGINS}/soft_dirty.so"
LIBRARY = "--backend soft-dirty"
# What changes memory; a bare soft-dirty loop sees the first two, and not memory that is given back.
SEEN = ("one-writer", "read")
UNSEEN = ("dontneed", "dontneed-block", "copied-discarded")
# These take minutes each under emulation.
LARGE = ("sparse", "alternate-pages", "many-ranges", "racing-watch")
# What a tracker of its own process does not meet, or does otherwise in another one.
OTHER = ("documented-loop", "racing-writers", "exec", "exit", "fork", "mremap", "swap")
# What the library's record of soft-dirty excludes, and what it refuses: trackers clearing each other's bits.
LIMITS = {"shared-alias", "pinned", "write-back", "merged", "trackers"}


@dataclass(frozen=True)
class Result:
    """A line of TAP and what was counted."""

    is_good: bool
    is_skipped: bool
    missed: int


def _files() -> Tree:
    names = ("soft_dirty", "pagemap_scan")
    files = {f"{PLUGINS}/{name}.so": File(artifacts.program(f"../plugins/{name}.so")) for name in names}
    return {**program(artifacts.program("dirty-conformance")), **files}


def _step(name: str, arguments: str, timeout_s: float) -> Step:
    command = f"TMPDIR={oracle.FILES} dirty-conformance {arguments}"
    return Step(name, command, timeout_s=timeout_s, expect=None)


def _run(*steps: Step) -> Transcript:
    return runner.run(
        MACHINES["bare-smp"].with_disk(),
        [oracle.SWAP, oracle.PREPARE, *steps],
        files=_files(),
        modules=("zram", *oracle.DISK_MODULES),
    )


def _cases(*names: str) -> str:
    return " ".join(f"--case {name}" for name in names)


def _results(transcript: Transcript, step: str) -> dict[str, Result]:
    """Return the results of a step by the name of the case and the process that was tracked."""
    output = transcript[step].output.replace("\r", "")
    found = {}
    for line, block in re.findall(r"^((?:not )?ok .*)\n((?:  .*\n)*)", output, re.MULTILINE):
        name = re.search(r" - (\S+ \(\w+) process\)", line)
        missed = re.search(r"^  missed: (\d+)$", block, re.MULTILINE)
        assert name and (missed or "# SKIP" in line), line
        key = name[1].replace("(", "")
        found[key] = Result(line.startswith("ok"), "# SKIP" in line, int(missed[1]) if missed else 0)
    plan = re.search(r"^1\.\.(\d+)$", output, re.MULTILINE)
    assert plan and len(found) == int(plan[1]), output
    return found


def test_the_library_is_good_where_a_bare_loop_is_not() -> None:
    cases = _cases(*SEEN, *UNSEEN)
    transcript = _run(
        _step("bare", f"{BARE} --target own {cases}", 300),
        _step("library", f"{LIBRARY} --target own {cases}", 300),
        _step("scan", f"--plugin {PLUGINS}/pagemap_scan.so --case one-writer", 60),
    )
    bare, library = (_results(transcript, step) for step in ("bare", "library"))
    assert {name for name, result in bare.items() if not result.is_good} == {f"{name} own" for name in UNSEEN}
    assert all(result.is_good and not result.is_skipped for result in library.values()), library
    scan = _results(transcript, "scan")
    if INSTALLED in ASYNC_WRITE_PROTECTION:  # But of another process it protects nothing.
        own, other = (scan[f"one-writer {target}"] for target in ("own", "another"))
        assert own.is_good and not own.is_skipped and other.is_skipped and transcript["scan"].rc == 0
    else:  # Nothing can be judged, which is not good.
        assert transcript["scan"].rc == 2 and all(result.is_skipped for result in scan.values())


@pytest.mark.long("every case, for the table in docs/results.md; the test above has what tells them apart")
@pytest.mark.timeout(3600)
def test_every_case() -> None:
    own = f"--target own --rounds 10 --seconds 1 {' '.join(f'--except {name}' for name in LARGE)}"
    other = f"--target other --seconds 1 {_cases(*OTHER)}"
    transcript = _run(
        _step("bare own", f"{BARE} {own}", 900),
        _step("bare other", f"{BARE} {other}", 600),
        _step("library own", f"{LIBRARY} {own}", 900),
        _step("library other", f"{LIBRARY} {other}", 600),
    )
    bare, library = (
        _results(transcript, f"{who} own") | _results(transcript, f"{who} other")
        for who in ("bare", "library")
    )
    assert [name for name, result in library.items() if not result.is_good] == []
    skipped = {name.split()[0] for name, result in library.items() if result.is_skipped}
    assert skipped <= {*LIMITS, "guest"}, skipped
    for name in (*(f"{name} own" for name in UNSEEN), "documented-loop another"):
        assert bare[name].missed, (name, bare)
    assert transcript.kernel_warnings() == []
