# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest with two vCPUs, on a host with two processors, reads only its own memory.

The program is ``guest/race.c``, with a VM of its own; KVM remembers huge pages only if its parameter bt_mode
is set. The host runs without a deterministic clock: two threads of QEMU race like two processors.

The kernel with deliberate mistakes is the negative control of this test, of test_debugged_guest.py, of
test_hostile.py, and of one of test_read_cache.py's. Both kernels are made by ``make -C power smp``.
"""

import re

import pytest

import smp
from differential import GUEST
from test_debugged_guest import EXPECTED, SCRIPT, said
from test_debugged_guest import files as debugger
from test_hostile import HOSTILE, hostile
from test_read_cache import PLAIN, SMALL
from test_read_cache import said as reread
from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("two kernels of its own are compiled, and a race takes minutes to occur"),
]

RACE, REREAD = "/bin/race", "/guest/reread.elf"
# The mutant is wrong once in about ten thousand loads or more; this takes a minute or two.
LOADS = 300_000
TIMEOUT_S = 1500


def run(*, mistaken: bool = False) -> power.Console:
    small = [line.replace(GUEST, REREAD) for setting in (PLAIN, SMALL) for line in setting.script("")]
    script = [*SCRIPT, f"run race {RACE} {LOADS}", *hostile("hostile", 2), *small]
    return power.in_host(
        [line.replace("hugetlb=64M", smp.HUGE) for line in script],
        files={
            RACE: File(artifacts.power("tests/guest", "race"), 0o755),
            REREAD: File(artifacts.power("tests/guest", "reread.elf")),
            HOSTILE: File(artifacts.power("tests/guest", "hostile.elf")),
            **debugger(),
        },
        how=power.How(timeout_s=TIMEOUT_S),
        label="mistaken" if mistaken else "smp",
        machine=smp.host(mistaken=mistaken),
    )


@pytest.fixture(scope="module")
def product() -> power.Console:
    return run()


@pytest.fixture(scope="module")
def mistaken() -> power.Console:
    return run(mistaken=True)


def wrong(console: power.Console) -> int:
    """Return how many loads read a wrong word."""
    found = re.findall(r"^race: vCPU \d: (\d+) loads, (\d+) wrong", console.of("race").text, re.MULTILINE)
    assert [int(loads) for loads, _ in found] == [LOADS, LOADS], console.of("race").text
    return sum(int(count) for _, count in found)


def test_two_vcpus_read_their_own_memory(product: power.Console) -> None:
    assert wrong(product) == 0


def test_negative_control_halves_of_two_pages_are_seen(mistaken: power.Console) -> None:
    assert wrong(mistaken) > 0


def test_a_debugger_finds_what_the_guest_wrote(product: power.Console) -> None:
    assert said(product) == EXPECTED


def test_negative_control_sites_under_a_debugger_are_seen(mistaken: power.Console) -> None:
    assert said(mistaken) != EXPECTED and "begun: replaced" in said(mistaken)


OWN_CODE = (
    "its own code, written over fragments",
    "its own code, waiting there",
    "its own code, in other pages",
    "its own code, in the other address space",
)


def test_a_guest_that_executes_its_own_code_is_left_alone(product: power.Console) -> None:
    said = product.of("hostile").text
    assert all(f"hostile: {what}: right" in said for what in OWN_CODE) and "WRONG" not in said


@pytest.mark.parametrize("what", OWN_CODE)
def test_negative_control_a_guest_that_is_moved_is_seen(mistaken: power.Console, what: str) -> None:
    assert f"hostile: {what}: WRONG" in mistaken.of("hostile").text


def test_a_page_with_its_first_site_is_not_read_as_it_was(product: power.Console) -> None:
    assert reread(product, SMALL) == reread(product, PLAIN)


def test_negative_control_a_page_that_stays_readable_is_seen(mistaken: power.Console) -> None:
    wrong = [line for line in reread(mistaken, SMALL) if "WRONG" in line]
    assert wrong and all("a page of code" in line for line in wrong)
