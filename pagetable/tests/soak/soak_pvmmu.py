# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the programs of test_pvmmu.py on ever new seeds while the module's switches are toggled.

Then the module is unloaded and loaded while processes fork without pause.

    .venv/bin/python pagetable/tests/soak/soak_pvmmu.py --minutes 600

Each boot, of two CPUs and of one in turn, takes the next seeds. It ends with an error at the first program
that fails, and with exit code 1 if a kernel complains.
"""

import sys
import time
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
@click.option("--first-seed", default=1000, show_default=True)
@click.option("--minutes", default=60.0, show_default=True, help="No boot begins after that.")
def main(first_seed: int, minutes: float) -> None:
    """Boot until the time is up."""
    until = time.monotonic() + 60 * minutes
    seed, boots = first_seed, 0
    while time.monotonic() < until:
        machine, size = MIXES[boots % len(MIXES)]
        steps = [pvmmu.SWAP, pvmmu.load()]
        for at in range(seed, seed + SEEDS):
            steps.append(pvmmu.toggling((*pvmmu.PROGRAMS, f"cow --seed {at} {size}"), f"seed {at}"))
        cycles = [pvmmu.unload(), pvmmu.load()] * CYCLES
        transcript = runner.run(
            MACHINES[machine],
            [*steps, pvmmu.step("storm", pvmmu.STORM), *cycles, pvmmu.unload()],
            files=pagetable.files((pagetable.PVMMU_PART,)),
            modules=pvmmu.MODULES,
        )
        seed, boots = seed + SEEDS, boots + 1
        print(f"{machine}: seeds up to {seed - 1}", flush=True)
        if warnings := transcript.kernel_warnings():
            print("\n".join(warnings))
            sys.exit(1)


if __name__ == "__main__":
    main()
