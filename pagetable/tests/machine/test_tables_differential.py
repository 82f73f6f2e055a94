# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An adversarial guest gets the same answer, call by call, from stock Xen and from Xen with the payload.

One boot compares stock Xen, the payload, the payload with calls interrupted in the middle, and stock Xen
again. The negative controls are payloads without one of their checks.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

import tables
from machines import GUEST, insmod, payload_file, refused, table_test_file
from trapless_lab.machines import domu, runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine

SEEDS, ROUNDS = range(1, 7), 40
DOMU_SEEDS = range(101, 103)
XPTI_SEEDS = range(201, 203)
RACE_SEEDS, RACE_ROUNDS = range(1, 3), 15
RANGE_SEEDS, RANGE_ROUNDS = range(301, 304), 20
TABLES = 2000  # at least, a leg
# Of the calls of each kind; the generator wants a third to a half of them refused.
ACCEPTED, REFUSED = 100, 50
SERVED = 200  # ranges in which the payload must have changed entries, a leg
CONTINUATIONS = 100  # a leg with interrupts; over 300 are usual

# In how many rounds a reference may be lost, see tables.LOST_OF_RACES: one of so many. Interrupts follow the
# guest's clock, which counts instructions: with the host's clock, results would depend on its load.
LOST_OF_ROUNDS, LOST_OF_DOMU_ROUNDS = 50, 8

# A part may be on without those that it works with: TPT_SWITCH_ZERO_RUNS, TPT_SWITCH_L1_UPDATE.
ALONE = {"zero_runs alone": 1, "l1_update alone": 2}
LEGS = ("boosted", "boosted, interrupted", "reverted")
UNDISTURBED = ("boosted", "reverted")
# The seed that shows each. One that does not leaves dom0 to a payload that may crash it.
CONTROLS = {
    "skip-unchecked": 1,
    "l1-unchecked": 1,
    "validation-unchecked": 5,
    "owner-unchecked": 1,
    "type-kept": 6,
    "run-unchecked": 5,
    "run-kept": 2,
    "run-unmarked": 1,
    "map-unchecked": 1,
    "map-overwrites": 1,
}
RANGE_CONTROLS = {"range-type-kept": 1, "range-unchecked": 1, "move-overwrites": 1}
# All parts that these seeds need: of the others' mistakes the seeds know nothing.
SWITCHES, RANGE_SWITCHES = 3, 11

_LOAD = Step("load the payload", f"xen-livepatch load {GUEST}/{NAME}.livepatch")
_UNLOAD = Step("unload the payload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}")


def _stock_and_boosted(
    seeds: range, kinds: str = "all", alone: Mapping[str, int] | None = None
) -> list[Step]:
    """Return the legs of dom0 up to where the payload is gone again."""
    return [
        insmod(tables.MODULE),
        tables.leg("stock", seeds, ROUNDS, "record", kinds=kinds),
        _LOAD,
        tables.leg("boosted", seeds, ROUNDS, "compare", kinds=kinds),
        tables.leg("boosted, interrupted", seeds, ROUNDS, "compare", preempt=True, kinds=kinds),
        *(
            tables.leg(name, seeds, ROUNDS, "compare", kinds=kinds, switches=switches)
            for name, switches in (alone or {}).items()
        ),
        _UNLOAD,
    ]


def _broken(variant: str, rounds: int, kinds: str = "all") -> list[Step]:
    return tables.broken(variant, CONTROLS[variant], rounds, kinds, SWITCHES)


def _with_ranges(name: str, mode: str, preempt: bool = False) -> Step:
    return tables.leg(f"{name}, ranges", RANGE_SEEDS, ROUNDS, mode, preempt, tables.EVERY_KIND)


def _ranges() -> list[Step]:
    """Return the legs with the payload's own calls, and on stock Xen with what they stand for."""
    return [
        _with_ranges("stock", "record"),
        replace(_LOAD, name="load for ranges"),
        _with_ranges("boosted", "compare"),
        _with_ranges("boosted, interrupted", "compare", preempt=True),
        replace(_UNLOAD, name="unload after ranges"),
        _with_ranges("reverted", "compare"),
        *(
            step
            for variant, seed in RANGE_CONTROLS.items()
            for step in tables.broken(variant, seed, RANGE_ROUNDS, tables.EVERY_KIND, RANGE_SWITCHES)
        ),
    ]


@pytest.fixture(scope="module")
def dom0() -> Transcript:
    p = tables.PARAMETERS
    flip = f"echo 1000 >{p}/flip"
    unflip = f"echo 4294967295 >{p}/flip"
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            *_stock_and_boosted(SEEDS, alone=ALONE),
            tables.leg("reverted", SEEDS, ROUNDS, "compare"),
            Step("flip", flip),
            tables.leg("one record flipped", SEEDS, ROUNDS, "compare"),
            Step("unflip", unflip),
            Step("leak", f"echo 1 >{p}/leak"),
            tables.leg("references kept", [1], 1, "off"),
            Step("no leak", f"echo 0 >{p}/leak"),
            *_ranges(),
            *_broken("skip-unchecked", rounds=6),
            *_broken("l1-unchecked", rounds=60, kinds="update,va"),
            *_broken("validation-unchecked", rounds=60, kinds="mmuext"),
            *_broken("owner-unchecked", rounds=6),
            *_broken("type-kept", rounds=6),
            *_broken("run-unchecked", rounds=20),
            *_broken("run-kept", rounds=20),
            *_broken("run-unmarked", rounds=6),
            *_broken("map-unchecked", rounds=6),
            *_broken("map-overwrites", rounds=6),
            Step("remove the test", f"rmmod {tables.MODULE}"),
        ],
        files={
            **table_test_file(),
            **payload_file(),
            **{
                path: file
                for variant in (*CONTROLS, *RANGE_CONTROLS)
                for path, file in payload_file(variant).items()
            },
        },
    )


@pytest.fixture(scope="module")
def guest() -> Transcript:
    """The same in a domU, to which Xen permits less, and in a dom0 that knows a frame of the domU."""
    other = domu.DomU(files=table_test_file())

    def inside(name: str, mode: str, preempt: bool = False) -> Step:
        return other.inside(tables.leg(name, DOMU_SEEDS, ROUNDS, mode, preempt, tables.EVERY_KIND))

    frame = other.run(f"cat {tables.PARAMETERS}/frame")
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            domu.toolstack(),
            other.create(),
            other.inside(insmod(tables.MODULE)),
            insmod(tables.MODULE, f"given=$({frame})", name="insmod in dom0"),
            inside("stock", "record"),
            tables.leg("dom0, stock", DOMU_SEEDS, ROUNDS, "record"),
            _LOAD,
            inside("boosted", "compare"),
            inside("boosted, interrupted", "compare", preempt=True),
            tables.leg("dom0, boosted", DOMU_SEEDS, ROUNDS, "compare"),
            _UNLOAD,
            inside("reverted", "compare"),
            other.inside(Step("remove the test", f"rmmod {tables.MODULE}")),
            Step("remove the test in dom0", f"rmmod {tables.MODULE}"),
            domu.console(),
            other.destroy(),
        ],
        files={**domu.tree(other), **table_test_file(), **payload_file()},
        modules=domu.MODULES,
    )


@pytest.fixture(scope="module")
def races() -> Transcript:
    return runner.run(
        MACHINES["xen-strict-smp"],
        [
            Step("CPUs", "nproc"),
            insmod(tables.MODULE),
            tables.race("stock", RACE_SEEDS, RACE_ROUNDS),
            _LOAD,
            tables.race("boosted", RACE_SEEDS, RACE_ROUNDS),
            _UNLOAD,
            Step("remove the test", f"rmmod {tables.MODULE}"),
        ],
        files={**table_test_file(), **payload_file()},
    )


@pytest.fixture(scope="module")
def isolated() -> Transcript:
    """With page-table isolation Xen runs each PV processor on a root table of its own."""
    return runner.run(
        replace(MACHINES["xen-strict"].with_icount(), xen_args=("xpti=yes",)),
        [
            *_stock_and_boosted(XPTI_SEEDS, tables.EVERY_KIND),
            Step("remove the test", f"rmmod {tables.MODULE}"),
        ],
        files={**table_test_file(), **payload_file()},
    )


@pytest.mark.parametrize("leg", [*LEGS, *ALONE])
def test_dom0_gets_what_stock_gives(dom0: Transcript, leg: str) -> None:
    _is_the_same(dom0, "stock", leg)


@pytest.mark.parametrize("leg", [f"{leg}, ranges" for leg in LEGS])
def test_ranges_are_what_updates_are(dom0: Transcript, leg: str) -> None:
    _is_the_same(dom0, "stock, ranges", leg)
    stock, got = tables.parse(dom0["stock, ranges"]), tables.parse(dom0[leg])
    assert stock.accepted["range"] > ACCEPTED
    assert stock.refused["range"] > REFUSED
    # Stock Xen does them one by one.
    assert stock.counters["ranges_served"] == 0
    served = got.counters["ranges_served"]
    assert served == 0 if leg.startswith("reverted") else served > SERVED
    lost = len(RANGE_SEEDS) * ROUNDS // LOST_OF_ROUNDS
    tables.require_nothing_left(got, stock, lost)


@pytest.mark.long("the second half: make check has dom0, one leg after the other")
@pytest.mark.parametrize("leg", LEGS)
def test_domu_gets_what_stock_gives(guest: Transcript, leg: str) -> None:
    _is_the_same(guest, "stock", leg)


@pytest.mark.long("the second half: make check has dom0, one leg after the other")
def test_dom0_beside_a_domu_gets_what_stock_gives(guest: Transcript) -> None:
    _is_the_same(guest, "dom0, stock", "dom0, boosted")


@pytest.mark.long("the same with a mitigation that costs no other code of ours: make check has it without")
@pytest.mark.parametrize("leg", ["boosted", "boosted, interrupted"])
def test_dom0_under_xpti_gets_what_stock_gives(isolated: Transcript, leg: str) -> None:
    assert "XPTI (64-bit PV only): Dom0 enabled" in isolated.console
    _is_the_same(isolated, "stock", leg)
    lost = len(XPTI_SEEDS) * ROUNDS // LOST_OF_DOMU_ROUNDS
    tables.require_nothing_left(tables.parse(isolated[leg]), tables.parse(isolated["stock"]), lost)
    assert isolated.kernel_warnings() == []


def _is_the_same(transcript: Transcript, stock: str, other: str) -> None:
    expected, got = tables.parse(transcript[stock]), tables.parse(transcript[other])
    assert expected.ok and got.ok, got.output
    assert got.compared == expected.calls > 0
    # In a round that does not count, records after the first difference are not comparable.
    if not got.counters["voided"]:
        assert got.digests == expected.digests


def test_the_guest_asks_for_enough(dom0: Transcript) -> None:
    stock = tables.parse(dom0["stock"])
    assert set(stock.digests) == set(SEEDS)
    # Each seed asks for something else.
    assert len(set(stock.digests.values())) == len(SEEDS)
    assert stock.counters["tables"] > TABLES
    for kind in ("mmuext", "mmu_update", "update_va_mapping", "trap"):
        assert stock.accepted[kind] > ACCEPTED, kind
        assert stock.refused[kind] > REFUSED, kind
    assert stock.accepted["multicall"] > ACCEPTED


def test_calls_were_left_in_the_middle(dom0: Transcript) -> None:
    """Counted from the guest's interrupted state, not by counters of Xen or the payload."""
    counters = tables.parse(dom0["boosted, interrupted"]).counters
    assert counters["continuations"] > CONTINUATIONS
    assert counters["voided"] <= len(SEEDS) * ROUNDS // LOST_OF_ROUNDS


@pytest.mark.parametrize("leg", ["stock", *LEGS])
def test_nothing_is_left_behind_in_dom0(dom0: Transcript, leg: str) -> None:
    lost = len(SEEDS) * ROUNDS // LOST_OF_ROUNDS
    tables.require_nothing_left(tables.parse(dom0[leg]), tables.parse(dom0["stock"]), lost)


@pytest.mark.long("the second half: make check has dom0, one leg after the other")
@pytest.mark.parametrize("leg", ["stock", *LEGS])
def test_nothing_is_left_behind_in_a_domu(guest: Transcript, leg: str) -> None:
    lost = len(DOMU_SEEDS) * ROUNDS // LOST_OF_DOMU_ROUNDS
    tables.require_nothing_left(tables.parse(guest[leg]), tables.parse(guest["stock"]), lost)


@pytest.mark.parametrize("leg", UNDISTURBED)
def test_the_same_tables_stay_typed(dom0: Transcript, leg: str) -> None:
    """Stock Xen leaves some typed after refused pins; the seed determines which."""
    assert tables.parse(dom0[leg]).counters["retired"] == tables.parse(dom0["stock"]).counters["retired"]


@pytest.mark.long("the second half: make check has dom0, one leg after the other")
@pytest.mark.parametrize("leg", ["stock", "boosted"])
def test_races_end_in_legal_tables(races: Transcript, leg: str) -> None:
    assert races["CPUs"].output.strip() == "2"
    raced, stock = tables.parse(races[leg]), tables.parse(races["stock"])
    assert raced.ok, raced.output
    tables.require_nothing_left(raced, stock, *tables.lost_of_races(len(RACE_SEEDS) * RACE_ROUNDS))
    assert raced.counters["race_accepted"] > 10_000
    assert raced.counters["race_refused"] > 1_000
    served = raced.counters["ranges_served"]
    assert served > SERVED if leg == "boosted" else served == 0


def test_negative_control_a_flipped_record_is_seen(dom0: Transcript) -> None:
    flipped = tables.parse(dom0["one record flipped"])
    assert not flipped.ok
    assert "expected: seed 1 call 1000 " in flipped.output


def test_negative_control_kept_references_are_seen(dom0: Transcript) -> None:
    counters = tables.parse(dom0["references kept"]).counters
    assert counters["illegal"] == 2  # a table that is writable, and one that maps itself writable
    assert counters["retired"] == counters["kept_data"] == 1


@pytest.mark.parametrize(("variant", "seed"), [*CONTROLS.items(), *RANGE_CONTROLS.items()])
def test_negative_control_a_missing_check_is_seen(dom0: Transcript, variant: str, seed: int) -> None:
    result = dom0[f"run {variant}"]
    assert result.rc == 0, result.output
    assert f"got     : seed {seed} call " in result.output


def test_dom0_does_not_complain(dom0: Transcript) -> None:
    assert dom0.kernel_warnings() == []


@pytest.mark.long("the second half: make check has dom0, one leg after the other")
def test_no_kernel_complains_beside_a_domu_or_in_a_race(guest: Transcript, races: Transcript) -> None:
    assert races.kernel_warnings() == guest.kernel_warnings() == []
    assert domu.kernel_warnings(guest) == []


def test_refused_outside_xen() -> None:
    transcript = runner.run(
        MACHINES["bare"],
        [insmod(tables.MODULE, name="not Xen", expect=None)],
        files=table_test_file(),
    )
    assert refused(transcript["not Xen"].output, "not a Xen PV guest")
