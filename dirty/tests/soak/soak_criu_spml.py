# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes 20 chains of checkpoints of a churning tree by stock criu in a guest of trapless-vmm, by SPML, and
restores it.

One batch of ``scripts/soak.py``, in one nested guest of two processors, all processes by turns on one of them
and on both. The seed is the tree's; each chain has one of its own. Every page is compared.
"""

import json
import sys

import click

import criu_steps

ROUNDS = 20
TIMEOUT_S = 7000


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
@click.option("--rounds", default=ROUNDS, show_default=True)
def main(seed: int, rounds: int) -> None:
    """Run one nested guest."""
    seeds = {f"chain-{number}": seed * ROUNDS + number for number in range(rounds)}
    trees = {name: f"dirtychurn /tmp/file 60 60 small {of_it}" for name, of_it in seeds.items()}
    pinned = frozenset(list(seeds)[1::2])
    outcomes = criu_steps.nested_chains(trees, pinned=pinned, timeout_s=TIMEOUT_S)
    for name, outcome in outcomes.items():
        if not outcome.is_right:
            click.echo(f"{name}, seed {seeds[name]}:\n{outcome.text}")
            sys.exit(1)
    pages = sum(outcome.pages for outcome in outcomes.values())
    click.echo(json.dumps({"chains of checkpoints": rounds, "pages compared": pages}))


if __name__ == "__main__":
    main()
