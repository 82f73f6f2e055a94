# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connects QEMU with the model of EPML (plugins/epml.c), and reads the model's counts.

The plugin is the server of an ivshmem device. QEMU opens the device's socket before it loads the plugin, so
this module creates both ends.

Invariant: each boot has sockets of its own, and both ends are closed here when it is over.
"""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..plugins import plugin
from .machine import Machine

COUNTS = "epml.counts"
"""The model's files in a run's working directory."""


@dataclass(frozen=True)
class Wires:
    """The additional arguments of QEMU, and the file descriptors that it inherits."""

    argv: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Counts:
    """The model's own: entries logged, stores that found a ring full, interrupts raised, processors armed."""

    logged: int
    overruns: int
    interrupts: int
    arms: int
    commands: int


@contextlib.contextmanager
def wired(machine: Machine, counts: Path) -> Iterator[Wires]:
    """Connect the model to its device for one boot; a machine without the model needs nothing."""
    model = machine.epml
    if model is None:
        yield Wires()
        return
    for_plugin, for_device = socket.socketpair()
    with for_plugin, for_device:
        written = str(counts).replace(",", ",,")
        faults = "".join(f",fault={fault}" for fault in model.faults)
        yield Wires(
            (
                "-plugin",
                f"{plugin.build('epml')},output={written},server={for_plugin.fileno()},"
                f"entries={model.entries}{faults}",
                "-chardev",
                f"socket,id=epml,fd={for_device.fileno()}",
                "-device",
                f"ivshmem-doorbell,chardev=epml,vectors={machine.cpus}",
            ),
            (for_plugin.fileno(), for_device.fileno()),
        )


def counts(work_dir: Path) -> Counts:
    """Return what the model wrote when the machine ended."""
    pairs = (line.split("=") for line in (work_dir / COUNTS).read_text().splitlines())
    return Counts(**{name: int(value) for name, value in pairs})
