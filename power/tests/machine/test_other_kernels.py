# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Linux 6.12 as host and guest: the same sources and the same series as for 6.1.

Once configured like the kernel of all other tests; and once as boards are: two processors, physical
addresses of 32 bits, another clock, preemption, on another board of QEMU's. ``make -C power later`` builds
both.
"""

import re
from dataclasses import replace

import pytest

from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = [pytest.mark.machine, pytest.mark.long("two kernels of its own are compiled: 15 minutes")]

RUN = "run=getppid,stat,fork,pipe,textsum"
# The board's guests have 4 KB pages, which need no preparation.
BACKINGS = {"6.12": "hugetlb=64M", "board": "anonymous"}
BOARDS = {
    "6.12": MACHINES["power-kvm"],
    "board": replace(MACHINES["power-kvm-smp"], board="mpc8544ds", linux_args=()),
}


@pytest.fixture(scope="module", params=list(BOARDS))
def console(request: pytest.FixtureRequest) -> power.Console:
    name: str = request.param
    image = artifacts.power(name, "vmlinux")
    vms = [Vm(mode, MODES[mode], RUN, backing=BACKINGS[name]) for mode in ("base", "inplace", "pv")]
    return power.in_host(
        ["show version /proc/version", *power.one_after_another(vms)],
        files={"/guest/vmlinux": File(image)},
        how=How(timeout_s=900),
        label=name,
        machine=replace(BOARDS[name], kernel=image),
    )


def test_it_is_another_kernel(console: power.Console) -> None:
    """Host and guests have one image."""
    assert console.of("version").text.startswith("Linux version 6.12.")


def test_most_exits_go_and_the_text_stays(console: power.Console) -> None:
    exits = {mode: console.statistics(mode)["emulated_inst_exits"] for mode in ("base", "inplace")}
    assert exits["inplace"] < 0.3 * exits["base"]
    said = [re.findall(r"^text [0-9a-f]{16} \d+$", console.of(mode).text, re.MULTILINE) for mode in exits]
    assert said[0] == said[1] and len(said[0]) == 1
    assert console.statistics("inplace")["bt_sites"] > 100


def test_paravirt_turns_itself_on(console: power.Console) -> None:
    """Patches 0003 and 0004."""
    exits = {mode: console.statistics(mode)["emulated_inst_exits"] for mode in ("base", "pv")}
    assert exits["pv"] < 0.8 * exits["base"]


def test_bare_metal() -> None:
    """With 80 MB: 6.12 takes multiples of 16 for ``mem``, and the initramfs is behind the first 64."""
    machine = replace(MACHINES["power"], kernel=artifacts.power("6.12", "vmlinux"), linux_args=("mem=80M",))
    console = power.bare("run=getppid,fork", how=How(timeout_s=120), machine=machine)
    assert set(console.results) >= {"kernel_boot", "getppid", "fork"}
