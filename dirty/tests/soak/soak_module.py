# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes as many random calls of the guest module's device as asked for, as in test_module.py, a seed a run.

    PYTHONPATH=dirty/tests/machine .venv/bin/python dirty/tests/soak/soak_module.py --calls 1000000

Every other run is nobody's, not root's. After each, processes are killed at each step and at any time; then
nothing that the module has allocated may be left, and it is unloaded and loaded again. A boot takes 10 runs.
It ends with exit code 1 at the first answer that is not the model's, when something is left behind, or when
the kernel complains.
"""

import sys
from dataclasses import replace

import click

import module_steps as m
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step

RUN, RUNS = 20_000, 10  # calls a run, runs a boot
NOBODY = 65534
NO_LIMIT_S = 3600


def _run(seed: int) -> list[Step]:
    user = NOBODY if seed % 2 else ""
    return [
        m.insmod(name=f"insmod {seed}"),
        Step(f"fuzz {seed}", f"dirtyfuzz {seed} {RUN} {user}", timeout_s=NO_LIMIT_S, expect=None),
        m.cases("dirtykill", f"kill {seed}"),
        m.released(f"released {seed}"),
        m.allocations(f"left {seed}"),
        m.rmmod(f"rmmod {seed}"),
    ]


@click.command(help=__doc__)
@click.option("--calls", default=1_000_000, show_default=True)
@click.option("--first-seed", default=1000, show_default=True)
def main(calls: int, first_seed: int) -> None:
    """Run boots until all calls are made."""
    seeds = range(first_seed, first_seed - (-calls // RUN))
    machine = replace(MACHINES["bare-smp"].with_disk(), linux_args=m.DEBUG_ARGS)
    for start in range(seeds.start, seeds.stop, RUNS):
        boot = range(start, min(start + RUNS, seeds.stop))
        transcript = runner.run(
            machine,
            [m.SWAP, *(step for seed in boot for step in _run(seed))],
            files=m.module_files(),
            modules=("ahci", "sd_mod"),
        )
        for seed in boot:
            fuzz, left = transcript[f"fuzz {seed}"], transcript[f"left {seed}"].output.strip()
            failed = m.failed(transcript, f"kill {seed}")
            if fuzz.rc or left or failed:
                click.echo(f"seed {seed}: {fuzz.output}{left}{failed}")
                sys.exit(1)
        if complaints := transcript.kernel_warnings():
            click.echo("\n".join(complaints))
            sys.exit(1)
        made = (boot[-1] + 1 - first_seed) * RUN
        click.echo(f"up to seed {boot[-1]}: {made} calls, every answer the model's, nothing left behind")


if __name__ == "__main__":
    main()
