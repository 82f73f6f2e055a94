# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes as many random calls of the guest module's device as asked for, as in test_module.py, a seed a run.

    PYTHONPATH=dirty/tests/machine .venv/bin/python dirty/tests/soak/soak_module.py --calls 1000000

Every other run is nobody's, not root's. After each, processes are killed at each step and at any time; then
nothing that the module has allocated may be left, and it is unloaded and loaded again. A boot takes 10 runs.
It ends with exit code 1 at the first answer that is not the model's, when something is left behind, or when
the kernel complains.
"""

import math
import secrets
import sys
import time
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
@click.option("--hours", type=float, help="Instead: go on for so long, on seeds that nobody has tried.")
def main(calls: int, first_seed: int, hours: float | None) -> None:
    """Run boots until all calls are made, or the time is over."""
    end = math.inf
    runs = -(-calls // RUN)
    if hours is not None:
        first_seed, runs, end = secrets.randbelow(1 << 30), sys.maxsize, time.monotonic() + 3600 * hours
    machine = replace(MACHINES["bare-smp"].with_disk(), linux_args=m.DEBUG_ARGS)
    done = 0
    while done < runs and time.monotonic() < end:
        boot = range(first_seed + done, first_seed + min(done + RUNS, runs))
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
        done += len(boot)
        click.echo(
            f"up to seed {boot[-1]}: {done * RUN} calls, every answer the model's, nothing left behind"
        )


if __name__ == "__main__":
    main()
