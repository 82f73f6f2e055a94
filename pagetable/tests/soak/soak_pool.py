# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Does everything to the pool at random while two processors fork, and counts the pages afterwards.

Enables, disables, shrinks, changes policies, takes memory away and gives it back, unloads the module and
loads it again: one batch of ``scripts/soak.py``.

A boot ends with module and payload unloaded, and with the memory, page tables and slabs of its start. It ends
with an error at the first step that fails, and with exit code 1 if pages are missing or a kernel complains.
Loading and unloading change the kernel's code, over which QEMU 7.2 may stand still if it emulates two
processors at the same time: in one batch of two they take turns, and in the other the module stays loaded.
"""

import json
import random
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

import control_files
import robustness as r
from machines import GUEST
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.parts import NAME, SYSFS

ACTIONS = 25  # a boot
FORKERS = 6
# Memory that the kernel keeps in its own caches once it was in use.
NOISE_KIB = {"MemFree": 8192, "PageTables": 128, "Slab": 8192}
LEVELS = pagetable.LEVELS

_STORM = (
    f"for i in $(seq {FORKERS}); do spawn fork-sh -n 1000000 >/dev/null 2>&1 & done; "
    "spawn browser -n 100000 --tabs 6 --mib 4 >/dev/null 2>&1 & sleep 1"
)
_CALM = "killall spawn; sleep 2"
_EAT = "dd if=/dev/zero of=/tmp/fill bs=1M count=300 2>/dev/null; rm /tmp/fill"


def _action(rng: random.Random, unload: bool) -> str:
    """Return one thing that may happen to the pool at any moment."""
    level = rng.choice(LEVELS)
    choices = [
        f"echo {rng.randrange(2)} >{SYSFS}/enabled",
        f"echo 0 >{SYSFS}/enabled && echo 1 >{SYSFS}/enabled",
        f"echo {rng.randrange(200)} >{SYSFS}/shrink",
        f"echo {rng.randrange(101)}% >{SYSFS}/shrink",
        f"echo {rng.randrange(64)} >{SYSFS}/{level}/cached",
        f"echo {rng.choice(control_files.POLICIES)} >{SYSFS}/policy",
        f"echo {rng.randrange(300)} >{SYSFS}/limit_{rng.choice(('number', 'percent'))}",
        f"sleep {rng.randrange(1, 20) / 10}",
        _EAT,
    ]
    if unload:
        choices.append(f"rmmod {NAME} && sleep 0.{rng.randrange(10)} && insmod {GUEST}/{NAME}.ko verify=1")
    return rng.choice(choices)


def _steps(seed: int, unload: bool) -> list[Step]:
    rng = random.Random(seed)
    load, gone = pagetable.load_steps(), pagetable.unload_steps()
    # The first storm grows the kernel's own caches; only then is memory comparable.
    return [
        r.step("warm up", f"{_STORM}; sleep 3; {_EAT}; {_CALM}"),
        r.step("memory before", r.MEMORY),
        *load,
        r.step("storm", _STORM),
        *(r.step(f"{seed}.{i}", _action(rng, unload)) for i in range(ACTIONS)),
        r.step("still forking", f"[ $(pidof spawn | wc -w) -ge {FORKERS + 1} ]"),
        r.step("calm", _CALM),
        *gone,
        r.step("memory after", r.MEMORY),
    ]


@click.command(help=__doc__)
@click.argument("seed", type=click.IntRange(min=1))
def main(seed: int) -> None:
    """Run one boot."""
    unload = seed % 2 == 0
    machine = MACHINES["xen-strict-smp"]
    if unload:
        machine = machine.with_turns()
    transcript = runner.run(machine, _steps(seed, unload), files=pagetable.files())
    before, after = (r.numbers(transcript[f"memory {when}"]) for when in ("before", "after"))
    click.echo(f"seed {seed}: memory {before} then {after}")
    missing = [name for name, noise in NOISE_KIB.items() if abs(before[name] - after[name]) > noise]
    if complaints := transcript.kernel_warnings() + [f"{name} differs" for name in missing]:
        click.echo("\n".join(complaints))
        sys.exit(1)
    click.echo(json.dumps({"changes under load": ACTIONS, "boots": 1}))


if __name__ == "__main__":
    main()
