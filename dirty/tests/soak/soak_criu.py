# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes 100 chains of checkpoints of a churning tree by stock criu, restores it, and compares every page.

One batch of ``scripts/soak.py``. The seed is the tree's; each chain has one of its own. By turns with two
back ends, on all processors and on one. Where no criu works, none is made, and that is said.
"""

import json
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path

import click
import pytest

import criu

ROUNDS = 100
WAYS = list(product(("uffd-async", "uffd-sync"), ("", "0")))


def _round(program: Path, folder: Path, seed: int, number: int) -> int:
    """Make one chain; returns the pages that were compared, and ends if one is wrong."""
    backend, processors = WAYS[number % len(WAYS)]
    what = f"round {number}, seed {seed}, {backend}, processors {processors or 'all'}"
    command = criu.trapless(folder / "socket", program, backend=backend)
    outcome = criu.chain(folder, command, f"dirtychurn file 60 2 {seed}", processors=processors)
    if outcome.status or outcome.wrong or not outcome.pages:
        click.echo(f"{what}:\n{outcome.text}")
        sys.exit(1)
    if not all(outcome.skipped(step) for step in ("two", "three")):
        click.echo(f"{what}: a dump is no increment:\n{outcome.text}")
        sys.exit(1)
    return outcome.pages


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
@click.option("--rounds", default=ROUNDS, show_default=True)
def main(seed: int, rounds: int) -> None:
    """Run all rounds once."""
    pages, done = 0, 0
    with tempfile.TemporaryDirectory() as name:
        try:
            program = criu.working(Path(name))
        except pytest.skip.Exception as why:
            click.echo(f"no chain: {why}")
            rounds = 0
        for number in range(rounds):
            folder = Path(name) / str(number)
            folder.mkdir()
            pages += _round(program, folder, seed * ROUNDS + number, number)
            done += 1
            click.echo(f"round {number + 1} of {rounds}: no page wrong")
            shutil.rmtree(folder)
    click.echo(json.dumps({"chains of checkpoints": done, "pages compared": pages}))


if __name__ == "__main__":
    main()
