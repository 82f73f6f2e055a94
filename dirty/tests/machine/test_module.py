# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest module's device: who may do what, and what bad luck leaves behind.

One boot of a stock kernel with its own debug options. What each case compares with is explained in the
C programs of ../guest.
"""

from dataclasses import replace

import pytest

import module_steps as m
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.releases import INSTALLED

pytestmark = pytest.mark.machine

PROGRAMS = ("dirtyaccess", "dirtykeep", "dirtykill", "dirtylimit")
CALLS = 5_000
NOBODY = 65534
FUZZ = {"fuzz as root": f"1 {CALLS}", "fuzz as nobody": f"2 {CALLS} {NOBODY}"}
# Each of these processes leaves something behind, or nothing does.
KILLED = 150
NOISE_KIB = 1024


# The kernels that the module is built for. Debian 12's backports have the source of Debian 13's.
KERNELS = (
    INSTALLED,
    pytest.param("6.12-deb13", marks=pytest.mark.long("a boot of a minute; the oracle judges it there")),
    pytest.param("6.12-deb12", marks=pytest.mark.long("6.12-deb13's source, by another compiler")),
)


@pytest.fixture(scope="module", params=KERNELS)
def transcript(request: pytest.FixtureRequest) -> Transcript:
    """Everything, with the memory before and after it."""
    machine = MACHINES["bare-smp"].with_linux(request.param).with_disk().with_kaslr()
    return runner.run(
        replace(machine, linux_args=m.DEBUG_ARGS),
        [
            m.SWAP,
            m.insmod(),
            m.held("held"),
            # Once for what the kernel makes at first use, and keeps.
            m.cases("dirtykill", "warm up"),
            m.released("released at first"),
            Step("memory before", m.MEMORY),
            m.cases("dirtykill"),
            m.released("released"),
            Step("memory after", m.MEMORY),
            *(m.cases(program) for program in PROGRAMS if program != "dirtykill"),
            *(Step(name, f"dirtyfuzz {arguments}", timeout_s=400) for name, arguments in FUZZ.items()),
            m.released("released at last"),
            m.allocations("left"),
            m.rmmod(),
            Step("gone", f"! grep {m.NAME} /proc/modules && [ ! -e /dev/{m.NAME} ]"),
            m.insmod(name="insmod again"),
            m.cases("dirtyaccess", "again", only="info files-apart"),
            m.rmmod("rmmod again"),
        ],
        files=m.module_files(linux=request.param),
        modules=("ahci", "sd_mod"),
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_cases(transcript: Transcript, program: str) -> None:
    assert m.failed(transcript, program) == [], transcript[program].output
    assert m.passed(transcript, program) == m.names_of(program)


@pytest.mark.parametrize("name", FUZZ)
def test_fuzz(transcript: Transcript, name: str) -> None:
    """Each command was taken and refused often enough to say something."""
    counts = m.fuzzed(transcript, name)
    assert counts.keys() == {"info", "attach", "watch", "unwatch", "collect", "read", "stats"}
    assert all(taken >= CALLS // 500 and refused >= CALLS // 2000 for taken, refused in counts.values())


def test_the_witness_of_leaks_sees_what_is_held(transcript: Transcript) -> None:
    """The control: of a process that is tracked, open file, memory, tracker, ranges and what was found."""
    output = transcript["held"].output
    for place in ("device_open", "new_memory", "tpd_attach", "tpd_watch", "block_to_mark"):
        assert place in output, output


def test_nothing_is_left_behind(transcript: Transcript) -> None:
    assert transcript["left"].output.strip() == ""


def test_memory_is_back(transcript: Transcript) -> None:
    before, after = m.numbers(transcript, "memory before"), m.numbers(transcript, "memory after")
    assert after["mm_struct"] - before["mm_struct"] < KILLED // 10, (before, after)
    free = [seen["MemFree"] + seen["hoarded"] for seen in (before, after)]
    assert free[0] - free[1] < NOISE_KIB, (before, after)


def test_it_works_once_more_after_all_that(transcript: Transcript) -> None:
    assert m.passed(transcript, "again") == ["info", "files-apart"]


def test_no_kernel_complains(transcript: Transcript) -> None:
    assert transcript.kernel_warnings() == []
