# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes a given number of random calls of the hypercall interface, each compared with a model.

The same test as in test_hypercalls.py, a seed a run, in dom0:

    .venv/bin/python pagetable/tests/soak/soak_hypercalls.py --calls 1000000

A boot takes 20 runs; after each of them the payload is reverted, which Xen does only if no frame is left
marked, and loaded again. It ends with exit code 1 at the first answer that is not the model's, or when QEMU
has seen other flushes than the model wants.
"""

import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

import hypercalls
from machines import GUEST, helper_file, insmod, payload_file
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.pagetable.parts import NAME

RUN, RUNS = 10_000, 20  # calls a run, runs a boot


def _run(seed: int, calls: int) -> list[Step]:
    return [
        Step(f"load {seed}", f"xen-livepatch load {GUEST}/{NAME}.livepatch"),
        insmod(hypercalls.MODULE, name=f"insmod {seed}"),
        hypercalls.fuzz(f"fuzz {seed}", seed, calls, timeout_s=3600),
        Step(f"rmmod {seed}", f"rmmod {hypercalls.MODULE}"),
        Step(f"unload {seed}", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"),
    ]


@click.command(help=__doc__)
@click.option("--calls", default=1_000_000, show_default=True)
@click.option("--first-seed", default=1000, show_default=True)
def main(calls: int, first_seed: int) -> None:
    """Run boots until all calls are made."""
    seeds = range(first_seed, first_seed - (-calls // RUN))
    moved = refused = cut_short = 0
    for start in range(seeds.start, seeds.stop, RUNS):
        boot = range(start, min(start + RUNS, seeds.stop))
        transcript = runner.run(
            MACHINES["xen-strict"],
            [step for seed in boot for step in _run(seed, RUN)],
            files={**helper_file(hypercalls.MODULE), **payload_file()},
        )
        for seed in boot:
            name = f"fuzz {seed}"
            result, counts = transcript[name], transcript.counts(name)
            if result.rc or not hypercalls.seen_by_qemu(result, counts):
                click.echo(f"seed {seed}: {result.output}QEMU saw {counts}")
                sys.exit(1)
            counted = hypercalls.counters(result)
            moved += counted["moved"]
            refused += counted["refused"]
            cut_short += counted["cut_short"]
        click.echo(
            f"up to seed {boot[-1]}: {(boot[-1] + 1 - first_seed) * RUN} calls, {moved} moves, {refused} "
            f"calls refused, {cut_short} left in the middle, every answer the model's"
        )


if __name__ == "__main__":
    main()
