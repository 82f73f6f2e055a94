# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the payload with stock Xen over as many seeds as there is time for.

The same test as test_tables_differential.py, without its end:

    .venv/bin/python pagetable/tests/soak/soak_tables.py --minutes 600

Each boot takes the next seeds in blocks: stock Xen first, then the payload on the same seeds, undisturbed and
interrupted, then the payload is reverted. About 10 tables and 80 calls a round. It ends with exit code 1 at
the first difference, and prints the call and both records.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

import tables
from machines import GUEST, helper_file, insmod, payload_file
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


def _boot(first: int, blocks: int, block: int) -> list[tables.Leg]:
    starts = [first + index * block for index in range(blocks)]
    steps = [insmod(tables.MODULE, f"records={RECORDS}")]
    for start in starts:
        steps += _block(str(start), range(start, start + block))
    transcript = runner.run(
        MACHINES["xen-strict"].with_icount(),
        steps,
        files={**helper_file(tables.MODULE), **payload_file()},
    )
    return [tables.parse(transcript[f"{start} {leg}"]) for start in starts for leg in LEGS]


@click.command(help=__doc__)
@click.option("--first-seed", default=1000, show_default=True)
@click.option("--minutes", default=60.0, show_default=True, help="No boot begins after that.")
@click.option("--blocks", default=BLOCKS, show_default=True, help="Blocks a boot.")
@click.option("--block", default=BLOCK, show_default=True, help="Seeds a block.")
def main(first_seed: int, minutes: float, blocks: int, block: int) -> None:
    """Run boots until the time is over."""
    end = time.monotonic() + 60 * minutes
    generated = calls = continuations = 0
    while time.monotonic() < end:
        for leg in _boot(first_seed, blocks, block):
            generated += leg.counters["tables"]
            calls += leg.calls
            continuations += leg.counters["continuations"]
            if not leg.ok or leg.counters["illegal"] or leg.counters["leaked"] or leg.counters["kept_data"]:
                click.echo(leg.output)
                sys.exit(1)
        first_seed += blocks * block
        click.echo(
            f"up to seed {first_seed - 1}: {generated} tables, {calls} calls, "
            f"{continuations} left in the middle, no difference"
        )


if __name__ == "__main__":
    main()
