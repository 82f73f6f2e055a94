# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the programs of test_pvmmu.py on eight seeds, and maps a page where entries are left out before each.

In three batches of four the module's switches are toggled meanwhile, and at the end it is unloaded and loaded
while processes fork without pause: one batch of ``scripts/soak.py``.

It ends with an error at the first program that fails, and with exit code 1 if a kernel complains. Toggling
and loading change the kernel's code, over which QEMU 7.2 may stand still if it emulates two processors at the
same time: where there are two they take turns, and in the batch in which they do not the module is loaded
once.
"""

import json
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

import pvmmu
from machines import helper_file, insmod
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import parts as pagetable

SEEDS = 8  # a boot, and as many pages as vmalloc_far maps
CYCLES = 10
ONE, TWO = MACHINES["xen-relaxed"], MACHINES["xen-relaxed-smp"]
SMALL, LARGE = "--pages 128 --rounds 400", "--pages 512 --rounds 200"
MIXES = ((TWO.with_turns(), LARGE, True), (ONE, SMALL, True), (TWO, LARGE, False), (ONE, SMALL, True))

FAR = "vmalloc_far"
_FAR = f"/sys/module/{FAR}/parameters"


def _read(pages: int) -> str:
    return f"read far <{_FAR}/read && [ $far = {pages} ]"


def _steps(seed: int, size: str, toggles: bool) -> list[Step]:
    steps = [pvmmu.SWAP, insmod(FAR), pvmmu.load()]
    for at in range(SEEDS):
        seeded = f"seed {seed * SEEDS + at}"
        programs = (*pvmmu.PROGRAMS, f"cow --seed {seed * SEEDS + at} {size}")
        steps.append(pvmmu.step(f"map, {seeded}", f"echo 1 >{_FAR}/map && {_read(at + 1)}"))
        if toggles:
            steps.append(pvmmu.toggling(programs, seeded))
        else:
            steps += pvmmu.oracles(seeded, programs)
        steps.append(pvmmu.step(f"read, {seeded}", f"{_read(at + 1)} && ({_read(at + 1)})"))
    if toggles:
        steps += [pvmmu.step("storm", pvmmu.STORM), *[pvmmu.unload(), pvmmu.load()] * CYCLES]
    return [*steps, pvmmu.unload(), pvmmu.step("read at last", _read(SEEDS))]


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    machine, size, toggles = MIXES[seed % len(MIXES)]
    transcript = runner.run(
        machine,
        _steps(seed, size, toggles),
        files={**pagetable.files((pagetable.PVMMU_PART,)), **helper_file(FAR)},
        modules=pvmmu.MODULES,
    )
    if warnings := transcript.kernel_warnings():
        click.echo("\n".join(warnings))
        sys.exit(1)
    cycles = CYCLES if toggles else 0
    click.echo(
        json.dumps(
            {"rounds of all programs": SEEDS, "far pages": SEEDS, "loads and unloads under forks": cycles}
        )
    )


if __name__ == "__main__":
    main()
