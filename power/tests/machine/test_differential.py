# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Random instruction sequences under plain KVM and translated in place: both must be the same machine.

The guest (``guest/differ.c``) prints a checksum of all its registers and memory after every few sequences;
those of its lines that do not depend on time must be the same in every mode. KVM's own counters show that the
compared code was in fact translated. In the negative control the guest corrupts one of its live fragments.

A soak of a million sequences takes half a day: TRAPLESS_SOAK_SEEDS=64; without it there is one seed.
"""

import os
from dataclasses import dataclass

import pytest

from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power

GUEST = "/guest/differ.elf"
PARAMETERS = "/sys/module/kvm/parameters"
TIMEOUT_S = 300

COUNT = 512
CONTROL_COUNT = 32
# Two minutes of a boot.
SOAK_COUNT = 2048
SOAK_BOOTS = 8
SOAK_SEEDS = range(1, 1 + int(os.environ.get("TRAPLESS_SOAK_SEEDS", "1")))
SOAK_TIMEOUT_S = 1200


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
        vm = power.vm_argv(power.Vm(self.label, power.Mode(), arguments, self.backing))
        vm[vm.index("/guest/vmlinux")] = GUEST
        return [
            *(f"write {PARAMETERS}/{name} {value}" for name, value in values.items()),
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


def run(runs: list[tuple[Setting, str]], timeout_s: float = TIMEOUT_S) -> power.Console:
    script = [line for setting, arguments in runs for line in setting.script(arguments)]
    files = {GUEST: File(artifacts.power("tests/guest", "differ.elf"))}
    return power.in_host(script, files=files, how=power.How(timeout_s=timeout_s), label="differ")


def checksums(console: power.Console, setting: Setting) -> list[str]:
    """Return the output that must not depend on the mode."""
    lines = console.of(setting.label).text.splitlines()
    return [line for line in lines if not line.startswith("time: ")]


def require_same(console: power.Console, setting: Setting, expected: list[str]) -> None:
    got = checksums(console, setting)
    wrong = [f"{a}  but {b}" for a, b in zip(expected, got, strict=False) if a != b]
    assert not wrong and len(got) == len(expected), f"{setting.label} differs:\n" + "\n".join(wrong[:8])


@pytest.fixture(scope="module")
def console() -> power.Console:
    runs = [(setting, f"seed=1 count={COUNT}") for setting in (BASE, *TRANSLATED)]
    runs.append((Setting("control-base", 0), f"seed=1 count={CONTROL_COUNT} corrupt=1"))
    runs.append((Setting("control", 2), f"seed=1 count={CONTROL_COUNT} corrupt=1"))
    runs.append((STALE, f"seed=1 count={CONTROL_COUNT} corrupt=2"))
    return run(runs)


@pytest.mark.machine
@pytest.mark.parametrize("setting", TRANSLATED, ids=lambda setting: setting.label)
def test_every_sequence_ends_in_the_same_state(console: power.Console, setting: Setting) -> None:
    expected = checksums(console, BASE)
    assert len(expected) > COUNT // 16 and "done" in expected
    assert not [line for line in expected if "where none can be" in line or "unexpected" in line]
    require_same(console, setting, expected)


@pytest.mark.machine
@pytest.mark.parametrize("setting", TRANSLATED, ids=lambda setting: setting.label)
def test_what_was_compared_was_translated(console: power.Console, setting: Setting) -> None:
    base, counters = console.statistics(BASE.label), console.statistics(setting.label)
    assert counters["emulated_inst_exits"] < base["emulated_inst_exits"]
    assert counters["bt_patched"] > COUNT and counters["bt_undone"] > COUNT / 2
    assert counters["bt_traced_loads"] > COUNT and counters["bt_traced_stores"] > COUNT
    assert counters["bt_reservations"] > 0 and counters["bt_traced_cacheops"] > 0
    if setting.mode == 2:
        assert counters["bt_fragments"] > COUNT
        assert counters["bt_settled"] > 0 and counters["bt_fragment_traps"] > 0
    if setting.cache_pages == 1:
        assert counters["bt_evicted"] > 0
    if setting.read_cache:
        assert counters["bt_reads_made"] > COUNT and counters["bt_reads_dropped"] > COUNT / 2
    else:
        assert counters["bt_reads_made"] == 0


@pytest.mark.machine
def test_interrupts_came(console: power.Console) -> None:
    for setting in (BASE, *TRANSLATED):
        lines = console.of(setting.label).text.splitlines()
        times = [line.split() for line in lines if line.startswith("time: interrupts ")]
        assert len(times) == 1 and int(times[0][2]) > COUNT / 4, f"{setting.label}: {times}"


@pytest.mark.machine
def test_negative_control_a_corrupted_fragment_is_seen(console: power.Console) -> None:
    untouched, spoiled = Setting("control-base", 0), Setting("control", 2)
    # Without fragments corrupt=1 changes nothing.
    assert checksums(console, untouched)[:-1] == checksums(console, BASE)[: CONTROL_COUNT // 16]
    with pytest.raises(AssertionError, match="control differs"):
        require_same(console, spoiled, checksums(console, untouched))


@pytest.mark.machine
def test_negative_control_corrupted_copies_are_seen(console: power.Console) -> None:
    with pytest.raises(AssertionError, match="stale differs"):
        require_same(console, STALE, checksums(console, Setting("control-base", 0)))


@pytest.mark.machine
@pytest.mark.long("the same sequences on many seeds")
@pytest.mark.timeout(SOAK_BOOTS * SOAK_TIMEOUT_S)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_sequences(seed: int) -> None:
    for boot in range(1, 1 + SOAK_BOOTS):
        arguments = f"seed={seed} first={boot * SOAK_COUNT} count={SOAK_COUNT}"
        soaked = run([(setting, arguments) for setting in (BASE, *TRANSLATED)], SOAK_TIMEOUT_S)
        for setting in TRANSLATED:
            require_same(soaked, setting, checksums(soaked, BASE))
