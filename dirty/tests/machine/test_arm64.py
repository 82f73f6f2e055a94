# SPDX-License-Identifier: Apache-2.0 OR MIT
"""libdirty on arm64: Debian 13's stock kernels for pages of 4 and of 16 KiB, which have no soft-dirty.

What is held: nothing is missed, and a process does not notice that a tracker attaches to it.
"""

import re
from functools import cache

import pytest

import oracle_steps as oracle
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, program
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

PAGES = {4: "arm64", 16: "arm64-16k"}
# What arms, discards, moves and shares memory, and what tells page sizes apart.
OWN = ("one-writer", "straddle", "dontneed", "mremap", "fork", "read")
OTHER = ("one-writer", "straddle", "exec", "exit")
MPROTECT = ("one-writer", "straddle", "fork")
# Many minutes under emulation, or gigabytes.
LARGE = (
    "alternate-pages",
    "sparse",
    "racing-watch",
    "many-ranges",
    "racing-writers",
    "huge",
    "documented-loop",
)

SLEEP_S = 6.0  # as in victim.c
ATTACH_AFTER_S = 2
# Each victim, and the mistake by which it is harmed, if there is one.
VICTIMS = {
    "sleep": "libdirty-no-restart",
    "poll": "",  # that the kernel itself leaves the rest of its time behind
    "pause": "",
    "registers": "",
    "sve": "libdirty-no-vectors",
}


def _victims(name: str, *, naive: bool = False) -> Step:
    """Return a step in which all run at once and a tracker attaches to each: ``naive``, a mutant of it."""
    script = []
    for victim, mistake in VICTIMS.items():
        observe = f"DIRTY_MUTANT={mistake} observe-mutant" if naive and mistake else "observe"
        script.append(f"dirtyvictim {victim} >/tmp/{victim} 2>&1 &")
        script.append(f"{{ sleep {ATTACH_AFTER_S}; {observe} $! 1; }} &")
    script += ["wait", *(f"echo {victim}: $(cat /tmp/{victim})" for victim in VICTIMS)]
    return Step(name, "\n".join(script), timeout_s=240)


def _said(transcript: Transcript, step: str) -> dict[str, dict[str, float]]:
    """Return the numbers that each victim printed, by their names."""
    lines = re.findall(r"^(\w+): (.*)$", transcript[step].output, re.MULTILINE)
    pairs = {victim: re.findall(r"(\w+) (-?[\d.]+)", line) for victim, line in lines}
    return {victim: {name: float(value) for name, value in found} for victim, found in pairs.items()}


def _run(page_kib: int, *steps: Step) -> Transcript:
    files = {
        **program(artifacts.arm64_program("dirty-oracle")),
        "/bin/observe": File(artifacts.arm64_program("examples/observe"), 0o755),
        "/bin/observe-mutant": File(artifacts.arm64_program("examples/observe", mutant=True), 0o755),
    }
    return runner.run(MACHINES[PAGES[page_kib]], steps, files=files)


ORACLE = {
    "own": f"--backend uffd-async --target own {oracle.only(OWN)}",
    "other": f"--backend uffd-async --target other {oracle.only(OTHER)}",
    "mprotect": f"--backend mprotect --target own {oracle.only(MPROTECT)}",
}


@cache
def _transcript(page_kib: int) -> Transcript:
    """Return what one boot of each kernel says to all tests."""
    return _run(
        page_kib,
        Step("size", "grep -m 1 KernelPageSize /proc/self/smaps"),
        _victims("victims"),
        *([_victims("naive", naive=True)] if page_kib == 4 else []),
        *(oracle.step(name, arguments, timeout_s=300) for name, arguments in ORACLE.items()),
    )


@pytest.mark.parametrize("page_kib", PAGES)
@pytest.mark.timeout(600)
def test_nothing_is_missed(page_kib: int) -> None:
    transcript = _transcript(page_kib)
    assert f" {page_kib} kB" in transcript["size"].output
    for name, wanted in (("own", OWN), ("other", OTHER), ("mprotect", MPROTECT)):
        report = oracle.report(transcript, name)
        target = "other" if name == "other" else "own"
        assert oracle.judged(report) == {(scenario, target) for scenario in wanted}, name
        assert oracle.bad(report) == [], name
    assert transcript.kernel_warnings() == []


@pytest.mark.parametrize("page_kib", PAGES)
@pytest.mark.timeout(600)
def test_no_target_is_harmed(page_kib: int) -> None:
    transcript = _transcript(page_kib)
    assert transcript["victims"].output.count("pages, by uffd-async") == len(VICTIMS)
    said = _said(transcript, "victims")
    for victim in ("sleep", "poll"):
        assert said[victim]["result"] == 0 and SLEEP_S <= said[victim]["took"] < SLEEP_S + 1, said
    assert said["pause"] == {"result": -1, "interrupted": 1}, said
    for victim in ("registers", "sve"):
        assert said[victim]["rounds"] > 1 and said[victim]["wrong"] == 0, said


@pytest.mark.timeout(600)
def test_naive_injections_are_caught() -> None:
    """The two that look right: they see nothing that would tell them of the harm."""
    transcript = _transcript(4)
    said = _said(transcript, "naive")
    assert said["sleep"]["took"] >= SLEEP_S + ATTACH_AFTER_S, said
    assert said["sve"]["wrong"] > 0, said


@pytest.mark.long("every scenario on both page sizes: make check has those in which processors differ")
@pytest.mark.parametrize("page_kib", PAGES)
@pytest.mark.timeout(2400)
def test_every_scenario(page_kib: int) -> None:
    arguments = f"--backend uffd-async {oracle.without(LARGE)}"
    transcript = _run(page_kib, oracle.step("all", arguments, timeout_s=2000))
    report = oracle.report(transcript, "all")
    assert len(oracle.judged(report)) > 40 and oracle.bad(report) == []
    assert transcript.kernel_warnings() == []
