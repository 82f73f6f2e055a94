# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command line of QEMU for a machine: a pure function of values.

Invariant: the console, the step log and the device trace of a PC are three separate files, and only the
guest's steps write to the second serial port. An arm64 machine has the first two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..releases import LATE_TIMERS
from .machine import Machine
from .trace import EVENTS


@dataclass(frozen=True)
class Images:
    """The files that a machine boots; all except the first two are optional.

    With UEFI, Xen, kernel and initramfs are on ``efi_disk`` (efi.py); ``firmware`` is its code and variables.
    """

    kernel: Path
    initramfs: Path
    xen: Path | None = None
    disk: Path | None = None
    efi_disk: Path | None = None
    firmware: tuple[Path, Path] | None = None


@dataclass(frozen=True)
class Outputs:
    """The files that a machine writes; ``complaints`` is its emulator's own output.

    If a machine has only one serial port, ``steps`` is the console's file.
    """

    console: Path
    steps: Path
    trace: Path
    complaints: Path


@dataclass(frozen=True)
class Plugin:
    """A QEMU plugin, the file that it writes, and the one that it reads, if it has input."""

    library: Path
    output: Path
    plan: Path | None = None


# Locally administered; the guest sees c0 as eth0.
MACS = {"c0": "52:54:00:00:00:00", "c1": "52:54:00:00:00:01"}

# Interrupt remapping needs a split irqchip.
_BOARDS = {"x86": "q35,kernel-irqchip=split", "power": "ppce500", "arm64": "virt,gic-version=3"}
_CONSOLES = {"x86": "ttyS0", "power": "ttyS0", "arm64": "ttyAMA0"}
_IOMMUS = {"intel": "intel-iommu,intremap=on", "amd": "amd-iommu,intremap=on"}
_DOM0_IOMMU = {"strict": "strict", "relaxed": "no-strict"}


def _quote(path: Path) -> str:
    """Double the commas, which end a value in QEMU's option lists."""
    return str(path).replace(",", ",,")


def linux_args(machine: Machine) -> str:
    """Return the kernel's command line."""
    # Warnings and their stack traces are level 4; further messages only cost time, most of all on Power,
    # where each character of a guest is an exit.
    level = 4 if machine.architecture == "power" else 5
    console = "hvc0" if machine.xen else _CONSOLES[machine.architecture]
    late = machine.pc and (machine.linux in LATE_TIMERS or machine.kernel)
    checks = ("no_timer_check",) if late else ()
    return " ".join((f"console={console}", "panic=-1", f"loglevel={level}", *checks, *machine.linux_args))


def steps_port(machine: Machine) -> str:
    """Return the name, in the guest, of the port that its steps write to."""
    return "ttyS0" if machine.architecture == "arm64" else "ttyS1"


def _serial_port(name: str, path: Path) -> list[str]:
    return ["-chardev", f"file,id={name},path={_quote(path)}", "-serial", f"chardev:{name}"]


def _linux_alone(machine: Machine, images: Images) -> list[str]:
    kernel = ["-kernel", str(images.kernel), "-initrd", str(images.initramfs)]
    return [*kernel, "-append", linux_args(machine)]


def xen_args(machine: Machine) -> str:
    """Return Xen's command line."""
    args = ["console=com1", "com1=115200", f"dom0_mem={machine.memory_mib // 2}M", "loglvl=all"]
    if machine.dom0 == "pvh":
        args.append("dom0=pvh")
    if machine.iommu:
        args += ["iommu=verbose,force", f"dom0-iommu={_DOM0_IOMMU[machine.iommu]}"]
    return " ".join((*args, *machine.xen_args))


def plugin_options(plugin: Plugin) -> list[str]:
    """Return the arguments that make QEMU load a plugin."""
    plan = f",plan={_quote(plugin.plan)}" if plugin.plan else ""
    return ["-plugin", f"{_quote(plugin.library)},output={_quote(plugin.output)}{plan}"]


def argv(
    qemu: Path,
    machine: Machine,
    images: Images,
    outputs: Outputs,
    plugins: Sequence[Plugin] = (),
    data: Path | None = None,
) -> list[str]:
    """Return the command that runs ``machine``; it ends when the guest powers off or resets.

    ``data`` has the emulator's own firmware, if it does not find that by itself.
    """
    args = [str(qemu), *(["-L", str(data)] if data else [])]
    args += ["-nodefaults", "-display", "none", "-no-reboot", "-m", f"{machine.memory_mib}M"]
    args += ["-M", machine.board or _BOARDS[machine.architecture], "-cpu", machine.cpu]
    if machine.icount:
        # A fixed date, too: Xen and Linux wait for the RTC's next second, which must not depend on the host.
        args += ["-accel", "tcg", "-icount", "shift=1,sleep=off", "-rtc", "clock=vm,base=2020-01-01"]
    else:
        thread = "single" if machine.turns else "multi"
        args += ["-accel", f"tcg,thread={thread}", "-smp", str(machine.cpus)]
    args += _serial_port("console", outputs.console)
    for plugin in plugins:
        args += plugin_options(plugin)
    if machine.exceptions:
        args += ["-d", "int,mmu" if machine.pc else "int"]
    args += ["-D", str(outputs.trace)]
    if machine.architecture == "arm64":
        # Its board has one port of its own; the kernel has this card's driver built in.
        args += ["-chardev", f"file,id=steps,path={_quote(outputs.steps)}"]
        args += ["-device", "pci-serial,chardev=steps"]
        return [*args, *_linux_alone(machine, images)]
    if not machine.pc:
        # Otherwise the seed in the device tree would differ from run to run.
        return [*args, "-seed", "1", *_linux_alone(machine, images)]
    args += _serial_port("steps", outputs.steps)
    if machine.iommu:
        args += ["-device", _IOMMUS[machine.vendor]]
    args += ["-chardev", "null,id=markers", "-device", "isa-parallel,iobase=0x378,chardev=markers"]
    for event in EVENTS:
        args += ["-trace", event]
    if machine.disk:
        if images.disk is None:
            raise ValueError(f"machine {machine.name} has a disk but no image for it")
        args += ["-drive", f"file={_quote(images.disk)},format=raw,if=none,id=d0,snapshot=on"]
        args += ["-device", "ide-hd,drive=d0,bus=ide.0"]
    if machine.cable:
        for card in ("c0", "c1"):
            args += ["-netdev", f"hubport,id={card},hubid=0"]
            # Without its boot ROM, which the firmware would run.
            args += ["-device", f"e1000,netdev={card},mac={MACS[card]},romfile="]
    if not machine.xen:
        return [*args, *_linux_alone(machine, images)]
    if machine.efi:
        if images.efi_disk is None or images.firmware is None:
            raise ValueError(f"machine {machine.name} is started by UEFI but there is no disk or no firmware")
        code, variables = images.firmware
        args += ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={_quote(code)}"]
        args += ["-drive", f"if=pflash,unit=1,format=raw,snapshot=on,file={_quote(variables)}"]
        args += ["-drive", f"file={_quote(images.efi_disk)},format=raw,if=none,id=efi,snapshot=on"]
        return [*args, "-device", "ide-hd,drive=efi,bus=ide.1"]
    if images.xen is None:
        raise ValueError(f"machine {machine.name} runs Xen but there is no hypervisor image")
    linux = f"{_quote(images.kernel)} {linux_args(machine)},{_quote(images.initramfs)}"
    return [*args, "-kernel", str(images.xen), "-initrd", linux, "-append", xen_args(machine)]
