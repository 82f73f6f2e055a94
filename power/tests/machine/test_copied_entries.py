# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Copies of shadow TLB entries (kvm/e500_bt_level2.c), and known shadow PIDs (kvm/e500_bt_context.c), after
each event that makes one wrong, by guests that change what one address maps (``guest/remap.c``) and that read
pages which have just become traced (``guest/reread.c``).

``make -C power smp`` makes the kernels of the negative controls.
"""

from dataclasses import replace

import pytest

from differential import GUEST, TIMEOUT_S, Setting
from test_read_cache import SMALL
from test_read_cache import said as reread
from trapless_lab import artifacts
from trapless_lab.errors import LabError
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.session import GuestError
from trapless_lab.power import machine as power

pytestmark = pytest.mark.machine

PLAIN = Setting("plain", 0)
LARGE = Setting("large", 2)
# Each page of the guest has a shadow entry of TLB0.
EACH_PAGE = Setting("each-page", 2, backing="anonymous")
# Two VMs, whose shadow PIDs are of one processor.
ONE, OTHER = Setting("one", 2, backing="anonymous"), Setting("other", 2, backing="anonymous")

REMAP, REREAD = "/guest/remap.elf", "/guest/reread.elf"
# All guests together take a few seconds.
HUNG_S = 60
# So long that each is interrupted by the other again and again.
ROUNDS = 2000
WAYS = (
    *("in user mode", "written over", "invalidated", "flushed", "not handed over"),
    *("of several processes", "of few processes"),
)


def at_once(settings: tuple[Setting, Setting]) -> list[str]:
    """Return the lines of the host's script that run two guests at the same time."""
    first, second = (setting.script(f"rounds={ROUNDS}") for setting in settings)
    runs = [line.replace("run ", "start ", 1) for line in (*first, *second) if line.startswith("run ")]
    others = [line for line in (*first, *second) if line.startswith("show ")]
    return [*(line for line in first if line.startswith("write ")), *runs, "wait", *others]


def files() -> dict[str, File]:
    return {
        path: File(artifacts.power("tests/guest", path.removeprefix("/guest/"))) for path in (REMAP, REREAD)
    }


def run(mistakes: str = "") -> power.Console:
    """Run all guests, on a host with a mistaken kernel or the product's."""
    machine = power.HOST
    if mistakes:
        machine = replace(machine, kernel=artifacts.mutant("power", mistakes, "vmlinux"))
    alone = [line for setting in (PLAIN, LARGE, EACH_PAGE) for line in setting.script("")]
    script = [line.replace(GUEST, REMAP) for line in (*alone, *at_once((ONE, OTHER)))]
    script += [line.replace(GUEST, REREAD) for line in SMALL.script("")]
    how = power.How(timeout_s=TIMEOUT_S)
    return power.in_host(script, files=files(), how=how, label="remap", machine=machine)


def said(console: power.Console, setting: Setting) -> list[str]:
    return [line for line in console.of(setting.label).text.splitlines() if line.startswith("remap: ")]


@pytest.fixture(scope="module")
def product() -> power.Console:
    return run()


@pytest.mark.parametrize("setting", [PLAIN, LARGE, EACH_PAGE, ONE, OTHER], ids=lambda setting: setting.label)
def test_an_address_is_what_it_was_mapped_to_last(product: power.Console, setting: Setting) -> None:
    assert said(product, setting) == [f"remap: {way}: right" for way in WAYS]


def test_entries_were_replaced_and_came_back(product: power.Console) -> None:
    """Else nothing was refilled from copies: each page has an entry of TLB0, and one set is crowded."""
    large, each_page = (product.statistics(setting.label) for setting in (LARGE, EACH_PAGE))
    assert each_page["dtlb_virt_miss_exits"] > large["dtlb_virt_miss_exits"] + 100


@pytest.fixture(scope="module")
def mistaken() -> power.Console:
    return run("copies")


@pytest.mark.long("its kernel is built for it alone")
@pytest.mark.parametrize("way", ["written over", "invalidated", "of several processes"])
def test_negative_control_a_copy_of_an_earlier_mapping_is_seen(mistaken: power.Console, way: str) -> None:
    assert f"remap: {way}: WRONG" in said(mistaken, EACH_PAGE)


@pytest.mark.long("its kernel is built for it alone")
def test_negative_control_a_copy_of_a_page_that_is_traced_now_is_seen(mistaken: power.Console) -> None:
    wrong = [line for line in reread(mistaken, SMALL) if "WRONG" in line]
    assert wrong and all("a page of code" in line for line in wrong)


def remap(mistake: str, lines: list[str]) -> power.Console:
    machine = replace(power.HOST, kernel=artifacts.mutant("power", mistake, "vmlinux"))
    script = [line.replace(GUEST, REMAP) for line in lines]
    how = power.How(timeout_s=HUNG_S)
    return power.in_host(script, files=files(), how=how, label="remap", machine=machine)


@pytest.mark.long("its kernel is built for it alone")
@pytest.mark.parametrize(
    ("mistake", "way"),
    [
        ("context-outlives-flush", "flushed"),
        ("contexts-outlive-pids", "of few processes"),
        ("handover-not-compared", "not handed over"),
    ],
)
def test_negative_control_another_process_is_seen(mistake: str, way: str) -> None:
    """The guest may not get to its end: if it misses under a PID that has no entries, it does so for ever."""
    try:
        console = remap(mistake, EACH_PAGE.script(""))
    except GuestError as error:
        assert "timed out" in str(error)
    else:
        assert f"remap: {way}: WRONG" in said(console, EACH_PAGE)


@pytest.mark.long("its kernel is built for it alone")
def test_negative_control_what_another_vm_has_got_meanwhile_is_seen() -> None:
    """A guest then runs in the other's address space, and finds another page, or none."""
    with pytest.raises(LabError, match=r"WRONG|unexpected interrupt"):
        remap("loaded-without-a-look", at_once((ONE, OTHER)))
