# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the programs of test_pvmmu.py on eight seeds while the module's switches are toggled.

Then the module is unloaded and loaded while processes fork without pause: one batch of ``scripts/soak.py``.

Batches have two CPUs and one in turn. It ends with an error at the first program that fails, and with exit
code 1 if a kernel complains.
"""

import json
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

import pvmmu
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.pagetable import parts as pagetable

SEEDS = 8  # a boot
CYCLES = 10
MIXES = (("xen-relaxed-smp", "--pages 512 --rounds 200"), ("xen-relaxed", "--pages 128 --rounds 400"))


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    machine, size = MIXES[seed % len(MIXES)]
    steps = [pvmmu.SWAP, pvmmu.load()]
    for at in range(seed * SEEDS, (seed + 1) * SEEDS):
        steps.append(pvmmu.toggling((*pvmmu.PROGRAMS, f"cow --seed {at} {size}"), f"seed {at}"))
    cycles = [pvmmu.unload(), pvmmu.load()] * CYCLES
    transcript = runner.run(
        MACHINES[machine],
        [*steps, pvmmu.step("storm", pvmmu.STORM), *cycles, pvmmu.unload()],
        files=pagetable.files((pagetable.PVMMU_PART,)),
        modules=pvmmu.MODULES,
    )
    if warnings := transcript.kernel_warnings():
        click.echo("\n".join(warnings))
        sys.exit(1)
    click.echo(json.dumps({"rounds of all programs": SEEDS, "loads and unloads under forks": CYCLES}))


if __name__ == "__main__":
    main()
