# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Random instruction sequences under plain KVM and translated in place: both must be the same machine.

The guest (``guest/differ.c``) prints a checksum of all its registers and memory after every few sequences;
those of its lines that do not depend on time must be the same in every mode. KVM's own counters show that the
compared code was in fact translated. In the negative control the guest corrupts one of its live fragments.

More seeds, for hours: ``soak/soak_differential.py``.
"""

import pytest

from differential import BASE, MANY, MANY_TIMEOUT_S, STALE, TRANSLATED, Setting, checksums, require_same, run
from trapless_lab.power import machine as power

COUNT = 512
CONTROL_COUNT = 32
BOOTS = 8


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
@pytest.mark.timeout(BOOTS * MANY_TIMEOUT_S)
def test_many_sequences() -> None:
    for boot in range(1, 1 + BOOTS):
        arguments = f"seed=1 first={boot * MANY} count={MANY}"
        many = run([(setting, arguments) for setting in (BASE, *TRANSLATED)], MANY_TIMEOUT_S)
        for setting in TRANSLATED:
            require_same(many, setting, checksums(many, BASE))
