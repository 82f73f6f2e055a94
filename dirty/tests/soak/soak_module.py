# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes 200,000 random calls of the guest module's device, as in test_module.py, a seed a run.

One batch of ``scripts/soak.py``. Every other run is nobody's, not root's. After each, processes are killed at
each step and at any time; then nothing that the module has allocated may be left, and it is unloaded and
loaded again. It ends with exit code 1 at the first answer that is not the model's, when something is left
behind, or when the kernel complains.
"""

import json
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
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    machine = replace(MACHINES["bare-smp"].with_disk(), linux_args=m.DEBUG_ARGS)
    boot = range(seed * RUNS, (seed + 1) * RUNS)
    transcript = runner.run(
        machine,
        [m.SWAP, *(step for run in boot for step in _run(run))],
        files=m.module_files(),
        modules=("ahci", "sd_mod"),
    )
    kills = 0
    for run in boot:
        fuzz, left = transcript[f"fuzz {run}"], transcript[f"left {run}"].output.strip()
        failed = m.failed(transcript, f"kill {run}")
        kills += len(m.passed(transcript, f"kill {run}"))
        if fuzz.rc or left or failed:
            click.echo(f"seed {run}: {fuzz.output}{left}{failed}")
            sys.exit(1)
    if complaints := transcript.kernel_warnings():
        click.echo("\n".join(complaints))
        sys.exit(1)
    click.echo(
        json.dumps({"calls": RUN * RUNS, "cases of killed processes": kills, "loads and unloads": RUNS})
    )


if __name__ == "__main__":
    main()
