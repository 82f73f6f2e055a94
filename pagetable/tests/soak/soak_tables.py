# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the payload with stock Xen over 400 seeds, as test_tables_differential.py does over a few.

One batch of ``scripts/soak.py``: in one boot the seeds in blocks, stock Xen first, then the payload on the
same seeds, undisturbed and interrupted, then the payload is reverted. About 10 tables and 80 calls a round.
It ends with exit code 1 at the first difference, and prints the call and both records.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
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
LEGS = ("stock", "boosted", "interrupted")


def _block(name: str, seeds: Sequence[int]) -> list[Step]:
    return [
        tables.leg(f"{name} stock", seeds, ROUNDS, "record"),
        Step(f"{name} load", f"xen-livepatch load {GUEST}/{NAME}.livepatch"),
        tables.leg(f"{name} boosted", seeds, ROUNDS, "compare"),
        tables.leg(f"{name} interrupted", seeds, ROUNDS, "compare", preempt=True),
        Step(f"{name} unload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"),
    ]


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
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
        if not leg.ok or leg.counters["illegal"] or leg.counters["leaked"] or leg.counters["kept_data"]:
            click.echo(leg.output)
            sys.exit(1)
    click.echo(json.dumps(tried))


if __name__ == "__main__":
    main()
