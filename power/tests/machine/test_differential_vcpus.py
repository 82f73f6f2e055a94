# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Random instruction sequences on two vCPUs at once, under plain KVM and translated in place.

Each vCPU runs sequences of its own, in memory of its own, so what it prints depends on nothing that the other
does; they share what translation has for a VM: sites, fragments in the same execute pages, traced blocks. The
host has two processors and no deterministic clock, so the two race. The first vCPU's sequences are those of
test_differential.py, and end in what one vCPU alone computes. In dense ones both have more sites than there
is room for, so each evicts what the other may be executing.

The negative control is a kernel in which a vCPU changes code without waiting for the other to leave it. Both
kernels are made by ``make -C power smp``. What this cannot see: wrong results where both vCPUs have the same
code or data, which test_translated_vcpus.py is for.
"""

from dataclasses import replace

import pytest

import smp
from differential import BASE, TRANSLATED, Setting, checksums, require_same, run
from trapless_lab.errors import LabError
from trapless_lab.power import machine as power

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("kernels of its own are compiled"),
]

COUNT = 512
TIMEOUT_S = 1500
ARGUMENTS = f"seed=1 count={COUNT}"
DENSE = "seed=1 count=128 dense=1"
ALONE = replace(BASE, label="alone", backing=smp.HUGE)
# Copies of data are made for a VM with one vCPU only.
PLAIN, *TWICE = (
    replace(setting, cpus=2, backing=smp.HUGE if setting.backing != "anonymous" else setting.backing)
    for setting in (BASE, *TRANSLATED)
    if not setting.read_cache
)
SMALL = next(setting for setting in TWICE if setting.cache_pages == 1)
DENSE_PLAIN, DENSE_SMALL = replace(PLAIN, label="dense-base"), replace(SMALL, label="dense")


@pytest.fixture(scope="module")
def console() -> power.Console:
    runs = [(setting, ARGUMENTS) for setting in (ALONE, PLAIN, *TWICE)]
    runs += [(setting, DENSE) for setting in (DENSE_PLAIN, DENSE_SMALL)]
    return run(runs, TIMEOUT_S, smp.host())


def halves(console: power.Console, setting: Setting) -> tuple[list[str], list[str]]:
    """Return what each processor printed."""
    lines = [line for line in checksums(console, setting) if line.startswith("differ: ")]
    second = lines.index("differ: processor 2")
    return lines[:second], lines[second + 1 :]


def test_plain_kvm_computes_on_two_what_it_does_on_one(console: power.Console) -> None:
    first, second = halves(console, PLAIN)
    alone = [line for line in checksums(console, ALONE) if line.startswith("differ: ")]
    assert first == alone and len(second) == len(first) == COUNT // 16
    assert not set(first) & set(second)


@pytest.mark.parametrize("setting", TWICE, ids=lambda setting: setting.label)
def test_every_sequence_ends_in_the_same_state(console: power.Console, setting: Setting) -> None:
    expected = checksums(console, PLAIN)
    assert not [line for line in expected if "where none can be" in line or "unexpected" in line]
    require_same(console, setting, expected)


@pytest.mark.parametrize("setting", TWICE, ids=lambda setting: setting.label)
def test_both_were_translated_and_stopped_each_other(console: power.Console, setting: Setting) -> None:
    counters = console.statistics(setting.label)
    # On both: more than the sequences of one alone.
    assert counters["bt_patched"] > 2 * COUNT and counters["bt_undone"] > COUNT
    assert counters["bt_stops"] > COUNT and counters["bt_reservations"] > 0
    assert counters["bt_reads_made"] == 0
    if setting.cache_pages == 1:
        assert counters["bt_evicted"] > 0


def test_what_one_evicts_while_the_other_runs(console: power.Console) -> None:
    require_same(console, DENSE_SMALL, checksums(console, DENSE_PLAIN))
    counters = console.statistics(DENSE_SMALL.label)
    assert counters["bt_evicted"] > 10_000 and counters["bt_stops"] > 10_000


def test_negative_control_a_vcpu_that_is_not_waited_for_is_seen() -> None:
    """Its guest executes what is no instruction, which ends it, or computes something else.

    Not in every run: it did in six of seven.
    """
    mistaken = smp.host(mistaken=True)
    expected = checksums(run([(DENSE_PLAIN, DENSE)], TIMEOUT_S, mistaken), DENSE_PLAIN)
    for _ in range(5):
        try:
            got = checksums(run([(DENSE_SMALL, DENSE)], TIMEOUT_S, mistaken), DENSE_SMALL)
        except LabError:
            return
        if got != expected:
            return
    pytest.fail("five runs were right")
