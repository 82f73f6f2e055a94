# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Power machines: an emulated e500v2 that runs one kernel alone, or as host and guest of its KVM.

Invariant: bare metal and guest have the same kernel image, initramfs and command line, except for their start
time, so they differ only in the machine. The clock counts instructions, and equal machines print equal
consoles. A run succeeds only if every program ended with exit code 0 and every guest said "done".
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import artifacts, host
from ..errors import LabError
from ..machines import initramfs, qemu, runner, session
from ..machines.initramfs import File, Tree
from ..machines.machine import MACHINES, Machine
from ..machines.qemu import Plugin
from ..machines.script import Step
from ..machines.transcript import complaints
from ..progress import Progress
from .console import Console as Console  # the public type of a machine's result
from .console import ConsoleLog

BARE, HOST = MACHINES["power"], MACHINES["power-kvm"]

VMM = "/bin/trapless-power-vmm"
EMULATOR = "/bin/qemu-system-ppc"

_ARGUMENTS = qemu.linux_args(replace(HOST, linux_args=()))
_KVM_MODE = "/sys/module/kvm/parameters/bt_mode"
_STATISTICS = "/tmp/statistics"  # in the emulated host

# For the emulator's translations: more than a guest's kernel and programs fill.
_TRANSLATIONS_MIB = 32

_ENDED = re.compile(r"^ended (\S+) (\d+)$", re.MULTILINE)
_VM = re.compile(rf"^(?:run|start) (\S+) (?:{VMM}|{EMULATOR}) ", re.MULTILINE)
_KILLED = re.compile(r"^killed (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Mode:
    """How KVM runs a guest: ``translation`` is its parameter bt_mode, ``options`` are the VMM's."""

    translation: int = 0
    options: tuple[str, ...] = ()


MODES: Mapping[str, Mode] = MappingProxyType(
    {
        "base": Mode(),
        "pv": Mode(options=("--paravirt",)),
        # Nothing is translated, but the host does all else that it does for translated guests.
        "base_fast": Mode(3),
        "pv_fast": Mode(3, ("--paravirt",)),
        "singles": Mode(1, ("--driver",)),
        "inplace": Mode(2, ("--driver",)),
    }
)


@dataclass(frozen=True)
class Vm:
    """One guest; ``arguments`` go to its kernel, ``options`` to its VMM, in addition to the mode's."""

    label: str
    mode: Mode
    arguments: str
    backing: str = "hugetlb=64M"
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class How:
    """How a machine is run: its logs are left in ``work_dir`` if there is one, with ``exceptions`` in the
    trace; ``plugins`` watch it.
    """

    progress: Progress = field(default_factory=Progress)
    work_dir: Path | None = None
    exceptions: bool = False
    plugins: tuple[Plugin, ...] = ()
    timeout_s: float = 600


def machine_facts(machine: Machine = HOST) -> dict[str, Any]:
    """Return the JSON's ``machine`` object, of a host like this one."""
    return {
        **host.package_versions(("qemu-system-ppc", "linux-source-6.1", "gcc-12-powerpc-linux-gnu")),
        "machines": [
            {
                "name": "ppce500",
                "cpu": machine.cpu,
                "cpus": machine.cpus,
                "memory_mib": machine.memory_mib,
            }
        ],
    }


def kernel() -> Path:
    """Return the one kernel image."""
    return artifacts.power("kernel", "vmlinux")


def guest_tree() -> dict[str, File | initramfs.Link]:
    """Return the files of bare metal and of guests."""
    programs = {"/init": "init", "/bin/echo": "echo", "/bin/sh": "sh"}
    return {path: File(artifacts.power("guest", name), 0o755) for path, name in programs.items()}


def vm_argv(vm: Vm) -> list[str]:
    """Return the command that runs a guest in the host."""
    return [
        *(VMM, "--kernel", "/guest/vmlinux", "--initramfs", "/guest/initramfs"),
        *(
            "--backing",
            vm.backing,
            "--statistics",
            f"{_STATISTICS}-{vm.label}",
            *vm.mode.options,
            *vm.options,
        ),
        *("--append", f'"{_ARGUMENTS} {vm.arguments} start=@TICKS@"'),
    ]


def _show_statistics(vm: Vm) -> str:
    return f"show {vm.label}.statistics {_STATISTICS}-{vm.label}"


def emulated(label: str, arguments: str) -> str:
    """Return the line of a host's script that runs a guest in an emulator instead of KVM, on a board like
    ``BARE``; the host's files need ``EMULATOR``, and its memory must not be taken by huge pages.

    Its clock begins at 0 when the emulator starts the guest.
    """
    memory = " ".join(BARE.linux_args)
    return (
        f"run {label} {EMULATOR} -nodefaults -display none -serial stdio -no-reboot -M ppce500 "
        f"-cpu {BARE.cpu} -m {BARE.memory_mib}M -accel tcg,tb-size={_TRANSLATIONS_MIB} "
        f'-kernel /guest/vmlinux -initrd /guest/initramfs -append "{_ARGUMENTS} {memory} {arguments} start=0"'
    )


def one_after_another(vms: Sequence[Vm]) -> list[str]:
    """Return the host's script (power/guest/script.c) that runs guests in turn."""
    lines = []
    for vm in vms:
        lines += [f"write {_KVM_MODE} {vm.mode.translation}", f"run {vm.label} {' '.join(vm_argv(vm))}"]
        lines.append(_show_statistics(vm))
    return lines


def side_by_side(vms: Sequence[Vm]) -> list[str]:
    """Return the host's script that runs guests at once; a VM gets the mode that is set at its creation."""
    return [*_started(vms), "wait", *map(_show_statistics, vms)]


def killed(vms: Sequence[Vm], after_ms: int, meanwhile: Sequence[str] = ()) -> list[str]:
    """Return the host's script that kills the VMMs while their guests run, after ``meanwhile``."""
    return [*_started(vms), f"sleep {after_ms}", *meanwhile, "kill"]


def _started(vms: Sequence[Vm]) -> list[str]:
    modes = {vm.mode.translation for vm in vms}
    if len(modes) != 1:
        raise ValueError("guests that start at once have one mode")
    return [
        f"write {_KVM_MODE} {modes.pop()}",
        *(f"start {vm.label} {' '.join(vm_argv(vm))}" for vm in vms),
    ]


def bare(
    arguments: str, *, files: Tree | None = None, how: How | None = None, machine: Machine = BARE
) -> Console:
    """Boot the kernel alone, with the guests' files and ``files``."""
    return _run("bare metal", machine, arguments, {**guest_tree(), **(files or {})}, how or How())


def in_host(
    script: Sequence[str],
    *,
    arguments: str = "",
    files: Tree | None = None,
    guest_files: Tree | None = None,
    how: How | None = None,
    label: str = "host",
    machine: Machine = HOST,
) -> Console:
    """Boot ``machine`` as a host that runs a script (power/guest/script.c) and gets ``arguments``.

    ``files`` are added to its own files, ``guest_files`` to its guests'.
    """
    with tempfile.TemporaryDirectory(prefix="trapless-power-") as temporary:
        guest_image = Path(temporary) / "initramfs"
        initramfs.pack({**guest_tree(), **(guest_files or {})}, guest_image, compress=False)
        tree = {
            "/init": File(artifacts.power("guest", "init"), 0o755),
            "/script": File("".join(f"{line}\n" for line in script).encode()),
            VMM: File(artifacts.power("vmm", "trapless-power-vmm"), 0o755),
            "/guest/vmlinux": File(kernel()),
            "/guest/initramfs": File(guest_image),
            **(files or {}),
        }
        console = _run(label, machine, f"{arguments} script=/script", tree, how or How())
    ended_by_us = _KILLED.findall(console.text)
    for vm in _VM.findall("\n".join(script)):
        if vm not in ended_by_us:
            _require_good(label, vm, console)
    return console


def _require_good(label: str, vm: str, console: Console) -> None:
    statuses, said = dict(_ENDED.findall(console.text)), console.of(vm)
    if statuses.get(vm) != "0" or not said.done:
        what = f"exit code {statuses[vm]}" if vm in statuses else "it was not run to its end"
        shown = session.last_lines(said.text)
        raise LabError(f"guest {vm} of {label} did not complete its workloads, {what}:\n{shown}")


def _run(name: str, machine: Machine, arguments: str, tree: Tree, how: How) -> Console:
    linux_args = (*machine.linux_args, *arguments.split())
    machine = replace(machine, name=name, linux_args=linux_args, exceptions=how.exceptions)
    log = ConsoleLog([Step("all", "", how.timeout_s)])
    with tempfile.TemporaryDirectory(prefix="trapless-power-") as temporary:
        directory = how.work_dir or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        runner.boot(machine, tree, log, directory, progress=how.progress, plugins=how.plugins)
    if warnings := complaints(log.console.text):
        raise LabError(f"the kernel of {name}, or of its guest, complained:\n" + "\n".join(warnings))
    return log.console
