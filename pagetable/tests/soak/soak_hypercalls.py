# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes 200,000 random calls of the hypercall interface, each compared with a model.

The same test as in test_hypercalls.py, a seed a run, in dom0: one batch of ``scripts/soak.py``.

After each run the payload is reverted, which Xen does only if no frame is left marked, and loaded again. It
ends with exit code 1 at the first answer that is not the model's, or when QEMU has seen other flushes than
the model wants.
"""

import json
import sys
from collections import Counter
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
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    boot = range(seed * RUNS, (seed + 1) * RUNS)
    transcript = runner.run(
        MACHINES["xen-strict"],
        [step for run in boot for step in _run(run, RUN)],
        files={**helper_file(hypercalls.MODULE), **payload_file()},
    )
    tried = Counter({"calls": RUN * RUNS})
    for run in boot:
        name = f"fuzz {run}"
        result, counts = transcript[name], transcript.counts(name)
        if result.rc or not hypercalls.seen_by_qemu(result, counts):
            click.echo(f"seed {run}: {result.output}QEMU saw {counts}")
            sys.exit(1)
        counted = hypercalls.counters(result)
        tried["pages marked or released"] += counted["moved"]
        tried["calls refused"] += counted["refused"]
        tried["calls left in the middle"] += counted["cut_short"]
    click.echo(json.dumps(tried))


if __name__ == "__main__":
    main()
