# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command line of QEMU for a machine: a pure function of values.

Invariant: the console, the step log and the device trace are three separate files, and nothing but the
guest's steps writes to the second serial port.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .machine import Machine
from .trace import EVENTS


@dataclass(frozen=True)
class Images:
    """What a machine boots; ``xen`` and ``disk`` only if the machine has them."""

    kernel: Path
    initramfs: Path
    xen: Path | None = None
    disk: Path | None = None


@dataclass(frozen=True)
class Outputs:
    """Where a machine writes; ``complaints`` is QEMU's own output."""

    console: Path
    steps: Path
    trace: Path
    complaints: Path


@dataclass(frozen=True)
class Plugin:
    """A plugin of QEMU's and the file it writes."""

    library: Path
    output: Path


_DOM0_IOMMU = {"strict": "strict", "relaxed": "no-strict"}


def _quote(path: Path) -> str:
    """Double the commas, which end a value in QEMU's option lists."""
    return str(path).replace(",", ",,")


def _linux_args(machine: Machine) -> str:
    # Warnings and their stack traces are level 4; above that the console only costs time.
    console = "hvc0" if machine.xen else "ttyS0"
    return " ".join((f"console={console}", "panic=-1", "loglevel=5", *machine.linux_args))


def _xen_args(machine: Machine) -> str:
    args = ["console=com1", "com1=115200", f"dom0_mem={machine.memory_mib // 2}M", "loglvl=all"]
    if machine.dom0 == "pvh":
        args.append("dom0=pvh")
    if machine.iommu:
        args += ["iommu=verbose,force", f"dom0-iommu={_DOM0_IOMMU[machine.iommu]}"]
    return " ".join((*args, *machine.xen_args))


def argv(
    qemu: Path, machine: Machine, images: Images, outputs: Outputs, plugins: Sequence[Plugin] = ()
) -> list[str]:
    """Return the command that runs ``machine``; it ends when the guest powers off or resets."""
    args = [str(qemu), "-nodefaults", "-display", "none", "-no-reboot", "-m", f"{machine.memory_mib}M"]
    # A split irqchip is what interrupt remapping needs.
    args += ["-M", "q35,kernel-irqchip=split", "-cpu", machine.cpu]
    if machine.icount:
        args += ["-accel", "tcg", "-icount", "shift=1,sleep=off"]
    else:
        args += ["-accel", "tcg,thread=multi", "-smp", str(machine.cpus)]
    if machine.iommu:
        args += ["-device", "intel-iommu,intremap=on"]
    for port, path in (("console", outputs.console), ("steps", outputs.steps)):
        args += ["-chardev", f"file,id={port},path={_quote(path)}", "-serial", f"chardev:{port}"]
    args += ["-chardev", "null,id=markers", "-device", "isa-parallel,iobase=0x378,chardev=markers"]
    for plugin in plugins:
        args += ["-plugin", f"{_quote(plugin.library)},output={_quote(plugin.output)}"]
    for event in EVENTS:
        args += ["-trace", event]
    args += ["-D", str(outputs.trace)]
    if machine.disk:
        if images.disk is None:
            raise ValueError(f"machine {machine.name} has a disk but no image for it")
        args += ["-drive", f"file={_quote(images.disk)},format=raw,if=none,id=d0,snapshot=on"]
        args += ["-device", "ide-hd,drive=d0,bus=ide.0"]
    if not machine.xen:
        return [
            *args,
            *("-kernel", str(images.kernel), "-initrd", str(images.initramfs)),
            *("-append", _linux_args(machine)),
        ]
    if images.xen is None:
        raise ValueError(f"machine {machine.name} runs Xen but there is no hypervisor image")
    linux = f"{_quote(images.kernel)} {_linux_args(machine)},{_quote(images.initramfs)}"
    return [*args, "-kernel", str(images.xen), "-initrd", linux, "-append", _xen_args(machine)]
