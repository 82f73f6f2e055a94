# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the guest of random sequences, ``guest/differ.c``, in several settings, and compares them."""

from collections.abc import Mapping
from dataclasses import dataclass

from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import Machine
from trapless_lab.power import machine as power

GUEST = "/guest/differ.elf"
PARAMETERS = "/sys/module/kvm/parameters"
TIMEOUT_S = 300

# Sequences in a boot of some two minutes.
MANY = 2048
MANY_TIMEOUT_S = 1200


def parameters(values: Mapping[str, int]) -> list[str]:
    """Return the lines of the host's script that set parameters of KVM."""
    return [f"write {PARAMETERS}/{name} {value}" for name, value in values.items()]


@dataclass(frozen=True)
class Setting:
    """How the host translates, and what the guest's memory is made of."""

    label: str
    mode: int
    threshold: int = 4
    cache_pages: int = 64
    backing: str = "hugetlb=64M"
    # Traced loads of one address before the load looks in the data cache first. Entries then have this size
    # and are never split, so that loads of data next to code remain traced.
    read_cache: int = 0
    first_kb: int = 4
    cpus: int = 1

    def script(self, arguments: str) -> list[str]:
        """Return the lines of the host's script that run the guest in this setting."""
        values = {
            "bt_mode": self.mode,
            "bt_threshold": self.threshold,
            "bt_cache_pages": self.cache_pages,
            "bt_read_cache": self.read_cache,
            "bt_first_kb": self.first_kb if self.read_cache else 4096,
            "bt_faults_to_split": 0 if self.read_cache else 32,
        }
        options = ("--cpus", str(self.cpus)) if self.cpus > 1 else ()
        arguments += f" cpus={self.cpus}"
        vm = power.vm_argv(power.Vm(self.label, power.Mode(), arguments, self.backing, options))
        vm[vm.index("/guest/vmlinux")] = GUEST
        return [
            *parameters(values),
            f"run {self.label} {' '.join(vm)}",
            f"show {self.label}.statistics {vm[vm.index('--statistics') + 1]}",
        ]


BASE = Setting("base", 0)
TRANSLATED = (
    Setting("inplace", 2),
    # So few slots that fragments of the running sequence are evicted.
    Setting("small-cache", 2, threshold=2, cache_pages=1),
    Setting("singles", 1, threshold=2),
    Setting("small-pages", 2, threshold=1, backing="anonymous"),
    Setting("read-cache", 2, read_cache=2),
)


# The guest corrupts its copies of data.
STALE = Setting("stale", 2, read_cache=2)


def run(
    runs: list[tuple[Setting, str]], timeout_s: float = TIMEOUT_S, machine: Machine = power.HOST
) -> power.Console:
    script = [line for setting, arguments in runs for line in setting.script(arguments)]
    files = {GUEST: File(artifacts.power("tests/guest", "differ.elf"))}
    how = power.How(timeout_s=timeout_s)
    return power.in_host(script, files=files, how=how, label="differ", machine=machine)


def checksums(console: power.Console, setting: Setting) -> list[str]:
    """Return the output that must not depend on the mode."""
    lines = console.of(setting.label).text.splitlines()
    return [line for line in lines if not line.startswith("time: ")]


def require_same(console: power.Console, setting: Setting, expected: list[str]) -> None:
    got = checksums(console, setting)
    wrong = [f"{a}  but {b}" for a, b in zip(expected, got, strict=False) if a != b]
    assert not wrong and len(got) == len(expected), f"{setting.label} differs:\n" + "\n".join(wrong[:8])
