# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs of an experiment that are recorded by plugins/spans.c.

Invariant: the addresses that were watched are those of the kernel that ran.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..experiment.experiment import Context
from ..machines.initramfs import Tree
from ..machines.machine import Machine
from ..machines.qemu import Plugin
from ..machines.script import Step
from ..machines.transcript import Transcript
from ..plugins import plugin, spans
from ..plugins.spans import Plan, Record
from ..profiler import kallsyms
from ..symbols import Area


@dataclass(frozen=True)
class Recorded:
    """A run and what was recorded of it."""

    transcript: Transcript
    records: Sequence[Record]


def take(
    context: Context,
    label: str,
    machine: Machine,
    steps: Sequence[Step],
    *,
    plan: Plan,
    kernel: Area,
    files: Tree | None = None,
) -> Recorded:
    """Run steps in a machine and record the plan's spans and events."""
    fixed = replace(machine, linux_args=(*machine.linux_args, kallsyms.NO_KASLR))
    with tempfile.TemporaryDirectory(prefix="trapless-spans-") as scratch:
        output = Path(scratch) / "spans"
        watching = Plugin(plugin.build("spans"), output, plan.write(Path(scratch) / "plan"))
        transcript = context.run(label, fixed, [kallsyms.PLACE, *steps], files, plugins=[watching])
        records = spans.parse(output.read_bytes())
    kallsyms.require(kernel, transcript[kallsyms.PLACE.name])
    return Recorded(transcript, records)
