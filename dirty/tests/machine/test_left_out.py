# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the guest module leaves out of a kernel in which a function that it relies on has other bytes.

The other bytes are a breakpoint: a kernel probe on the instruction behind the function's head. The control
is the same kernel without the probe, in which nothing is left out and the same program tracks.
"""

import pytest

import module_steps as m
from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import program
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.releases import INSTALLED, Linux

pytestmark = pytest.mark.machine

TRACING = "/sys/kernel/tracing"
LEFT_OUT = f"cat /sys/class/misc/{m.NAME}/left_out"
# What is left out because of a function, beside what then is said.
PROBED = {"dbit": "clear_refs_write", "all": "__get_user_pages", "epml": "kthread_use_mm"}
AS_IT_WAS = "as it was"
KERNELS = (
    INSTALLED,
    "6.12-deb13",
    pytest.param("6.12-deb12", marks=pytest.mark.long("6.12-deb13's source, by another compiler")),
)


def _probe(name: str) -> str:
    """Behind ftrace's call at the head, before which some kernels have a landing pad."""
    return f"{{ echo p:known/it {name}+5 || echo p:known/it {name}+9; }} >{TRACING}/kprobe_events 2>/dev/null"


def _loaded(when: str) -> list[Step]:
    return [
        m.insmod(name=f"insmod, {when}"),
        Step(f"left out, {when}", LEFT_OUT),
        Step(f"doctor, {when}", "trapless doctor --verbose || true"),
        Step(f"track, {when}", "dirtyaccess info files-apart", expect=None),
        m.rmmod(f"rmmod, {when}"),
    ]


@pytest.fixture(scope="module", params=KERNELS)
def transcript(request: pytest.FixtureRequest) -> Transcript:
    """One boot: a probe after the other, and then none."""
    linux: Linux = request.param
    steps = [Step("tracing", f"mount -t tracefs t {TRACING}")]
    for part, name in PROBED.items():
        steps += [
            Step(f"probe {part}", f"{_probe(name)}; echo 1 >{TRACING}/events/known/enable"),
            *_loaded(part),
            Step(f"unprobe {part}", f"echo 0 >{TRACING}/events/known/enable; echo >{TRACING}/kprobe_events"),
        ]
    return runner.run(
        MACHINES["bare-smp"].with_linux(linux),
        [*steps, *_loaded(AS_IT_WAS)],
        files={**m.module_files(linux=linux), **program(artifacts.program("trapless"))},
    )


def test_nothing_is_left_out_of_a_known_kernel(transcript: Transcript) -> None:
    assert transcript[f"left out, {AS_IT_WAS}"].output.split() == []
    assert m.passed(transcript, f"track, {AS_IT_WAS}") == ["info", "files-apart"]
    assert "leaves" not in transcript[f"doctor, {AS_IT_WAS}"].output


@pytest.mark.parametrize("part", PROBED)
def test_what_is_not_known_is_left_out(transcript: Transcript, part: str) -> None:
    (line,) = transcript[f"left out, {part}"].output.splitlines()
    assert line.startswith(f"{part}: {PROBED[part]} (") and "is not as in any kernel that is known" in line
    assert f"{part} is left out: {PROBED[part]} (" in transcript.console


@pytest.mark.parametrize("part", PROBED)
def test_nothing_else_is(transcript: Transcript, part: str) -> None:
    """EPML is no mechanism of this machine: without it all that was there before is there."""
    tracks = m.passed(transcript, f"track, {part}") == ["info", "files-apart"]
    assert tracks == (part == "epml"), transcript[f"track, {part}"].output


@pytest.mark.parametrize("part", PROBED)
def test_the_tool_says_so(transcript: Transcript, part: str) -> None:
    said = " ".join(transcript[f"doctor, {part}"].output.split())
    for mechanism in ("dbit", "spml", "epml"):
        left_out = f"leaves {mechanism} out of this kernel: {PROBED[part]} (" in said
        assert left_out == (part in (mechanism, "all")), said


def test_the_kernel_is_content(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
