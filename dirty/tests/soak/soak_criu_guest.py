# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes 100 chains of checkpoints of a churning tree by stock criu in the stock guest, and restores it.

One batch of ``scripts/soak.py``, in one boot of two processors: by turns with the back ends that a guest has,
EPML's model among them, and all processes on one processor or on both. The seed is the tree's; each chain has
one of its own. Every page is compared.
"""

import json
import sys

import click

import module_steps
from trapless_lab.dirty import criu
from trapless_lab.dirty.criu import Outcome
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step

ROUNDS = 100
BACKENDS = ("dbit", "epml", "uffd-sync")
PINNED = "taskset -p 1 $$ >/dev/null;"


def _steps(number: int, seed: int) -> tuple[str, list[Step]]:
    """Return one chain, and what makes room for the next."""
    backend, before = BACKENDS[number % len(BACKENDS)], PINNED if number % 2 else ""
    name = f"{number}-{backend}"
    # Huge mappings are most of a chain's time.
    kind = "" if number % 4 == 0 else "small"
    tree = f"dirtychurn /tmp/file-{name} 100 30 {kind} {seed}"
    chain = criu.chain(name, tree, criu.command(backend, f"/tmp/socket-{name}"), before=before)
    return name, [chain, Step(f"room {name}", f"rm -rf /tmp/{name} /tmp/file-{name}")]


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
@click.option("--rounds", default=ROUNDS, show_default=True)
def main(seed: int, rounds: int) -> None:
    """Run one boot."""
    chains = [(seed * ROUNDS + number, *_steps(number, seed * ROUNDS + number)) for number in range(rounds)]
    small = Step("huge pages on request", "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")
    transcript = runner.run(
        MACHINES["bare-smp"].with_epml(),
        [criu.PREPARE, small, module_steps.insmod(), *(step for *_, steps in chains for step in steps)],
        files={**criu.files(), **module_steps.module_files()},
        modules=criu.MODULES,
    )
    pages = 0
    for one, name, _ in chains:
        outcome = Outcome(transcript[name].rc, transcript[name].output)
        if not outcome.is_right:
            click.echo(f"round {name}, seed {one}:\n{outcome.text}")
            sys.exit(1)
        pages += outcome.pages
    if complaints := transcript.kernel_warnings():
        click.echo("\n".join(complaints))
        sys.exit(1)
    click.echo(json.dumps({"chains of checkpoints": rounds, "pages compared": pages}))


if __name__ == "__main__":
    main()
