# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the payload with stock Xen, as test_tables_differential.py does over a few seeds.

One batch of ``scripts/soak.py``. Even seeds have one CPU: 400 seeds of the guest in blocks, stock Xen first,
then the payload on the same seeds, undisturbed and interrupted, then the payload is reverted. About 10 tables
and 80 calls a round. It ends with exit code 1 at the first difference, and prints the call and both records.
Odd seeds have two CPUs, which race on the same tables; there a call's result depends on the other CPU, and
the batch fails at a state that must never occur.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

import tables
from machines import GUEST, insmod, payload_file, table_test_file
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.pagetable.parts import NAME

ROUNDS = 40
RECORDS = 600_000  # of 40 bytes; a block of 100 seeds makes 400,000
BLOCK, BLOCKS = 100, 4  # seeds a block, blocks a boot
RACE_ROUNDS, RACE_SEEDS, RACES = 15, 2, 10  # rounds a seed, seeds a leg, pairs of legs a boot
LEGS = ("stock", "boosted", "interrupted")


# Xen applies it while all CPUs wait, and gives up after 30 ms: on a busy host an emulated one may come later.
LOAD = (
    f"xen-livepatch upload {NAME} {GUEST}/{NAME}.livepatch && n=0 && "
    f"until xen-livepatch apply {NAME}; do [ $((n += 1)) -lt 9 ] || exit 1; sleep 1; done"
)


def _with_payload(name: str, *legs: Step) -> list[Step]:
    return [
        Step(f"{name} load", LOAD),
        *legs,
        Step(f"{name} unload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"),
    ]


def _block(name: str, seeds: Sequence[int]) -> list[Step]:
    return [
        tables.leg(f"{name} stock", seeds, ROUNDS, "record", kinds=tables.EVERY_KIND),
        *_with_payload(
            name,
            tables.leg(f"{name} boosted", seeds, ROUNDS, "compare", kinds=tables.EVERY_KIND),
            tables.leg(
                f"{name} interrupted", seeds, ROUNDS, "compare", preempt=True, kinds=tables.EVERY_KIND
            ),
        ),
    ]


def _differential(seed: int) -> Counter[str]:
    """Compare each call with stock Xen's, on one CPU, and return what was tried."""
    first = seed * BLOCKS * BLOCK
    starts = range(first, first + BLOCKS * BLOCK, BLOCK)
    transcript = runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            insmod(tables.MODULE, f"records={RECORDS}"),
            *(step for start in starts for step in _block(str(start), range(start, start + BLOCK))),
        ],
        files={**table_test_file(), **payload_file()},
    )
    tried: Counter[str] = Counter()
    for start, name in product(starts, LEGS):
        leg = tables.parse(transcript[f"{start} {name}"])
        tried["tables"] += leg.counters["tables"]
        tried["calls"] += leg.calls
        tried["calls left in the middle"] += leg.counters["continuations"]
        wrong = [leg.counters[name] for name in ("illegal", "leaked", "kept_data", "kept_l1")]
        if not leg.ok or any(wrong):
            click.echo(leg.output)
            sys.exit(1)
    return tried


def _races(seed: int) -> Counter[str]:
    """Let two CPUs race, under stock Xen and the payload in turn, and return what was tried."""
    first = seed * RACES * RACE_SEEDS
    blocks = [
        range(start, start + RACE_SEEDS) for start in range(first, first + RACES * RACE_SEEDS, RACE_SEEDS)
    ]
    steps = [Step("CPUs", '[ "$(nproc)" = 2 ]'), insmod(tables.MODULE)]
    for block in blocks:
        steps += [
            tables.race(f"{block.start} stock", block, RACE_ROUNDS),
            *_with_payload(str(block.start), tables.race(f"{block.start} boosted", block, RACE_ROUNDS)),
        ]
    transcript = runner.run(MACHINES["xen-strict-smp"], steps, files={**table_test_file(), **payload_file()})
    tried: Counter[str] = Counter()
    left_by_stock: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for block in blocks:
        stock, boosted = (tables.parse(transcript[f"{block.start} {name}"]) for name in ("stock", "boosted"))
        if not (stock.ok and boosted.ok):
            click.echo(stock.output + boosted.output)
            sys.exit(1)
        left_by_stock.update(stock.counters)
        left.update(boosted.counters)
        tried["racing calls accepted on two CPUs"] += boosted.counters["race_accepted"]
        tried["racing calls refused on two CPUs"] += boosted.counters["race_refused"]
    # Of all legs together: stock alone keeps 12 to 30 tables a leg.
    tables.require_nothing_left(
        replace(boosted, counters=left),
        replace(stock, counters=left_by_stock),
        *tables.lost_of_races(RACES * RACE_SEEDS * RACE_ROUNDS),
    )
    if complaints := transcript.kernel_warnings():
        click.echo("\n".join(complaints))
        sys.exit(1)
    return tried


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    click.echo(json.dumps(_races(seed) if seed % 2 else _differential(seed)))


if __name__ == "__main__":
    main()
