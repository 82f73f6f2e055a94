# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest with two vCPUs that is translated in place computes what it would on a processor.

The host has two processors and no deterministic clock: two threads of QEMU race like two processors. The
first guest, ``guest/together.c``, executes more sites than there is room for, changes its code meanwhile,
and compares what both vCPUs compute with what a program computes. The second is Linux: processes fork on
both vCPUs while modules are loaded, jump labels are flipped and code is generated; it ends with the same
text as under plain KVM. The negative control is a kernel in which a vCPU changes code without waiting for
the other to leave it. All kernels are made by ``make -C power smp``.
"""

import re
from dataclasses import dataclass, replace

import pytest

import smp
from differential import parameters
from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power
from trapless_lab.power.experiments import two_vcpus
from trapless_lab.power.machine import MODES, Console, How, Vm

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("kernels of its own are compiled; two vCPUs that stop each other take minutes"),
]

TOGETHER = "/bin/together"
ROUNDS = 20
TIMEOUT_S = 1500


@dataclass(frozen=True)
class Setting:
    """KVM's parameters, and how often the second vCPU computes."""

    label: str
    mode: int
    threshold: int = 4
    cache_pages: int = 64
    first_kb: int = 4096
    often: int = 100

    def lines(self) -> list[str]:
        return parameters(
            {
                "bt_mode": self.mode,
                "bt_threshold": self.threshold,
                "bt_cache_pages": self.cache_pages,
                "bt_first_kb": self.first_kb,
            }
        )


PLAIN = Setting("plain", 0, often=5)
TRANSLATED = (
    Setting("fragments", 2, threshold=1),
    # Three of five instructions still exit: with more it takes longer than the program allows.
    Setting("singles", 1, threshold=1, often=20),
    Setting("hot", 2, threshold=8, first_kb=4),
)


def said(console: Console, setting: Setting) -> list[str]:
    lines = console.of(setting.label).text.splitlines()
    return [line for line in lines if line.startswith("together: ")]


def together(settings: tuple[Setting, ...], *, mistaken: bool = False) -> Console:
    script = [
        line
        for setting in settings
        for line in (*setting.lines(), f"run {setting.label} {TOGETHER} {ROUNDS} {setting.often}")
    ]
    return power.in_host(
        script,
        files={TOGETHER: File(artifacts.power("tests/guest", "together"), 0o755)},
        how=How(timeout_s=TIMEOUT_S),
        label="mistaken" if mistaken else "smp",
        machine=smp.host(mistaken=mistaken),
    )


@pytest.fixture(scope="module")
def console() -> Console:
    return together((PLAIN, *TRANSLATED))


def right(setting: Setting) -> list[str]:
    """Return what is printed if nothing is wrong: each vCPU adds one in each round to both counters."""
    count = ROUNDS * (1 + setting.often)
    return [
        "together: vCPU 0: right",
        "together: vCPU 1: right",
        f"together: counters: {count} {count}",
        "together: status 0",
    ]


def test_plain_kvm_computes_what_is_expected(console: Console) -> None:
    assert "answer: 12\n" in console.of(PLAIN.label).text
    assert said(console, PLAIN) == right(PLAIN)


@pytest.mark.parametrize("setting", TRANSLATED, ids=lambda setting: setting.label)
def test_two_vcpus_do_so_translated(console: Console, setting: Setting) -> None:
    assert "answer: 0\n" in console.of(setting.label).text
    assert said(console, setting) == right(setting)


def test_what_was_compared_was_translated(console: Console) -> None:
    text = console.of("fragments").text
    counted = {name: int(value) for name, value in re.findall(r"^counted: (\S+) (\d+)$", text, re.MULTILINE)}
    assert counted["bt_evicted"] > 40 * ROUNDS and counted["bt_reservations"] > 0
    assert counted["bt_stops"] > ROUNDS / 2 and counted["bt_settled"] > 0


def test_negative_control_a_vcpu_that_is_not_waited_for_is_seen() -> None:
    """Its guest executes a fragment of another instruction, usually one that leads nowhere.

    Not in every run: it did in four of six.
    """
    often = tuple(replace(TRANSLATED[0], label=f"wrong-{i}", often=300) for i in range(4))
    mistaken = together((PLAIN, *often), mistaken=True)
    assert said(mistaken, PLAIN) == right(PLAIN)
    assert [setting for setting in often if said(mistaken, setting) != right(setting)]


# Not "probes": it probes a lock that disables interrupts itself, as on one processor.
MODULES = ("privileged", "privileged_other", "labels", "generated")
CHANGES = ("labels", "privileged", "generated", "privileged_other", "labels", "generated")
RUN = f"run=fork,modules+echo_spawn+fork+exec,textsum modules={','.join(CHANGES)}"
SMALL = Setting("small", 2, threshold=2, cache_pages=1)
LINUX = (PLAIN, Setting("inplace", 2), SMALL)


@pytest.fixture(scope="module")
def linux() -> Console:
    script = []
    for setting in LINUX:
        mode = replace(MODES["inplace" if setting.mode else "base"], translation=setting.mode)
        vm = Vm(setting.label, mode, RUN, backing=smp.HUGE, options=("--cpus", "2"))
        script += [*setting.lines(), *power.one_after_another([vm])]
    return power.in_host(
        script,
        files={"/guest/vmlinux": File(two_vcpus.kernel())},
        guest_files={
            f"/modules/{name}.ko": File(artifacts.power("smp/module", f"{name}.ko")) for name in MODULES
        },
        how=How(timeout_s=TIMEOUT_S),
        label="smp",
        machine=smp.host(),
    )


def digests(console: Console, setting: Setting) -> list[str]:
    return re.findall(r"^text .*$", console.of(setting.label).text, re.MULTILINE)


@pytest.mark.parametrize("setting", LINUX, ids=lambda setting: setting.label)
def test_linux_runs_on_both(linux: Console, setting: Setting) -> None:
    text = linux.of(setting.label).text
    assert "together on 2\n" in text
    calls = re.findall(r"^module (\S+) ", text, re.MULTILINE)
    assert set(calls) == set(CHANGES) and "failed" not in text
    assert len(digests(linux, setting)) == 1 and digests(linux, setting) == digests(linux, PLAIN)


def test_linux_was_translated(linux: Console) -> None:
    plain, inplace, small = (linux.statistics(setting.label) for setting in LINUX)
    assert inplace["bt_sites"] > 100
    # Modules, too, on both processors: the execute pages for them are mapped on both.
    assert inplace["bt_out_of_range"] == 0
    assert inplace["emulated_inst_exits"] < plain["emulated_inst_exits"] / 2
    assert small["bt_evicted"] > 100
