# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Power machines: an emulated e500v2 that runs one kernel alone, or under its own KVM as guest of itself.

Invariant: bare metal and guest get one kernel image, one initramfs and one command line, but for when they
were started, so they differ in the machine alone. The clock counts instructions, and equal machines print
equal consoles. A run is good only if every program ended with exit code 0 and every guest said "done".
"""

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import artifacts, host
from ..errors import LabError
from ..machines import initramfs, session
from ..machines.initramfs import File, Tree
from ..machines.transcript import complaints
from ..progress import Progress

CPU = "e500v2_v30"
HOST_MEMORY_MIB = 512
# QEMU's board has multiples of 64, with an initramfs behind the first. A guest has 64, so that is as near as
# bare metal comes.
BARE_MEMORY_MIB = 128
BARE_MEMORY_USED_MIB = 66
NS_PER_INSTRUCTION = 2
TICKS_PER_SECOND = 400_000_000
TICKS_PER_INSTRUCTION = NS_PER_INSTRUCTION * TICKS_PER_SECOND / 1e9

VMM = "/bin/trapless-power-vmm"

# Warnings and worse: each character on the console is an exit of a guest.
_ARGUMENTS = "console=ttyS0 panic=-1 loglevel=4"
_KVM_MODE = "/sys/module/kvm/parameters/bt_mode"
_STATISTICS = "/tmp/statistics"  # in the host's memory; a file of the lab it is not
_LAYOUT = "bt_layout:"
_POLL_S = 0.05
_TAIL_LINES = 25

_RESULT = re.compile(r"^result (\S+) (\d+) (\d+)$", re.MULTILINE)
_ENDED = re.compile(r"^ended (\S+) (\d+)$", re.MULTILINE)
_LASTED = re.compile(r"^lasted (\d+)$", re.MULTILINE)
_DONE = re.compile(r"^done$", re.MULTILINE)
_VM = re.compile(r"^(?:run|start) (\S+) " + VMM + " ", re.MULTILINE)
_KILLED = re.compile(r"^killed (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Mode:
    """How KVM runs a guest: ``translation`` is its parameter bt_mode, ``options`` are of the VMM."""

    translation: int = 0
    options: tuple[str, ...] = ()


MODES: Mapping[str, Mode] = MappingProxyType(
    {
        "base": Mode(),
        "pv": Mode(options=("--paravirt",)),
        "singles": Mode(1, ("--driver",)),
        "inplace": Mode(2, ("--driver",)),
    }
)


@dataclass(frozen=True)
class Vm:
    """One guest; ``arguments`` go to its kernel, ``options`` to its VMM besides what the mode asks for."""

    label: str
    mode: Mode
    arguments: str
    backing: str = "hugetlb=64M"
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class How:
    """How a machine is run: its logs are kept in ``work_dir`` if there is one; ``qemu`` goes to QEMU."""

    progress: Progress = field(default_factory=Progress)
    work_dir: Path | None = None
    qemu: tuple[str, ...] = ()
    timeout_s: float = 600


@dataclass(frozen=True)
class Measured:
    """What a workload took: ticks of the timebase, of so many repetitions."""

    ticks: int
    count: int

    @property
    def instructions(self) -> float:
        """Return the instructions of one repetition."""
        return self.ticks / self.count / TICKS_PER_INSTRUCTION


@dataclass(frozen=True)
class Console:
    """All that a machine's console showed."""

    text: str

    def of(self, label: str) -> "Console":
        """Return what one program of a host printed."""
        prefix = f"{label}| "
        lines = (line for line in self.text.splitlines() if line.startswith(prefix))
        return Console("".join(f"{line.removeprefix(prefix)}\n" for line in lines))

    @property
    def results(self) -> dict[str, Measured]:
        """Return what workloads measured, by name."""
        return {name: Measured(int(ticks), int(count)) for name, ticks, count in _RESULT.findall(self.text)}

    @property
    def instructions(self) -> float:
        """Return how many the machine had executed, by its clock, when its last program was about to end."""
        lasted = _LASTED.search(self.text)
        if not lasted:
            raise LabError("the console does not say how long the machine ran")
        return int(lasted[1]) / TICKS_PER_INSTRUCTION

    def statistics(self, label: str) -> dict[str, int]:
        """Return KVM's counters of a guest: of the VM by their names, of its vCPU as ``vcpu0/NAME``."""
        pairs = (line.rsplit(":", 1) for line in self.of(f"{label}.statistics").text.splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].strip().isdigit()}

    def traced(self, label: str) -> int:
        """Return how many accesses of a guest to traced pages were emulated."""
        counts = self.statistics(label)
        return counts["bt_traced_loads"] + counts["bt_traced_stores"] + counts["bt_traced_cacheops"]

    def shadow_misses(self, label: str) -> int:
        """Return how often a guest missed the shadow TLB alone, and not its own."""
        counts = self.statistics(label)
        return counts["itlb_virt_miss_exits"] + counts["dtlb_virt_miss_exits"]

    def layout(self, label: str) -> str:
        """Return how a guest's traced blocks were split, as KVM takes it back."""
        lines = self.of(f"{label}.statistics").text.splitlines()
        return "".join(f"{line.removeprefix(_LAYOUT)}\n" for line in lines if line.startswith(_LAYOUT))


def machine_facts() -> dict[str, Any]:
    """Return the JSON's ``machine`` object."""
    return {
        **host.package_versions(("qemu-system-ppc", "linux-source-6.1", "gcc-powerpc-linux-gnu")),
        "machines": [{"name": "ppce500", "cpu": CPU, "cpus": 1, "memory_mib": HOST_MEMORY_MIB}],
    }


def kernel() -> Path:
    """Return the one kernel image."""
    return artifacts.power("kernel", "vmlinux")


def guest_tree() -> dict[str, File | initramfs.Link]:
    """Return what bare metal and guests have."""
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


def one_after_another(vms: Sequence[Vm]) -> list[str]:
    """Return the host's script (power/guest/script.c) that runs guests in turn."""
    lines = []
    for vm in vms:
        lines += [f"write {_KVM_MODE} {vm.mode.translation}", f"run {vm.label} {' '.join(vm_argv(vm))}"]
        lines.append(_show_statistics(vm))
    return lines


def side_by_side(vms: Sequence[Vm]) -> list[str]:
    """Return the host's script that runs guests at once; a VM takes the mode that is set when it is made."""
    return [*_started(vms), "wait", *map(_show_statistics, vms)]


def killed(vms: Sequence[Vm], after_ms: int, meanwhile: Sequence[str] = ()) -> list[str]:
    """Return the host's script that kills the VMMs of guests in the middle, when ``meanwhile`` is done."""
    return [*_started(vms), f"sleep {after_ms}", *meanwhile, "kill"]


def _started(vms: Sequence[Vm]) -> list[str]:
    modes = {vm.mode.translation for vm in vms}
    if len(modes) != 1:
        raise ValueError("guests that start at once have one mode")
    return [
        f"write {_KVM_MODE} {modes.pop()}",
        *(f"start {vm.label} {' '.join(vm_argv(vm))}" for vm in vms),
    ]


def bare(arguments: str, *, files: Tree | None = None, how: How | None = None) -> Console:
    """Boot the kernel alone, with what guests have and ``files``."""
    told = f"mem={BARE_MEMORY_USED_MIB}M {arguments}"
    return _run("bare metal", BARE_MEMORY_MIB, told, {**guest_tree(), **(files or {})}, how or How())


def in_host(
    script: Sequence[str],
    *,
    arguments: str = "",
    files: Tree | None = None,
    guest_files: Tree | None = None,
    how: How | None = None,
    label: str = "host",
) -> Console:
    """Boot the kernel as a host that runs a script (power/guest/script.c) and is told ``arguments``.

    ``files`` are added to what it has, ``guest_files`` to what its guests have.
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
        # A huge page for each guest of 64 MiB; four leave the host enough.
        told = f"hugepagesz=64M hugepages=4 {arguments} script=/script"
        console = _run(label, HOST_MEMORY_MIB, told, tree, how or How())
    ended_by_us = _KILLED.findall(console.text)
    for vm in _VM.findall("\n".join(script)):
        if vm not in ended_by_us:
            _require_good(label, vm, console)
    return console


def _require_good(label: str, vm: str, console: Console) -> None:
    statuses, said = dict(_ENDED.findall(console.text)), console.of(vm).text
    if statuses.get(vm) != "0" or not _DONE.search(said):
        what = f"exit code {statuses[vm]}" if vm in statuses else "it was not run to its end"
        raise LabError(f"guest {vm} of {label} did not do all it was asked for, {what}:\n{_last_lines(said)}")


def argv(memory_mib: int, image: Path, arguments: str, console: Path) -> list[str]:
    """Return QEMU's command line; it ends when the machine resets itself."""
    quoted = str(console).replace(",", ",,")  # commas end a value in QEMU's option lists
    return [
        str(host.tool("qemu-system-ppc", "qemu-system-ppc")),
        *("-nodefaults", "-display", "none", "-no-reboot"),
        *("-M", "ppce500", "-cpu", CPU, "-m", f"{memory_mib}M"),
        *("-accel", "tcg", "-icount", "shift=1,sleep=off"),
        # What else would differ from run to run: the date, and the seed in the device tree.
        *("-rtc", "clock=vm,base=2020-01-01", "-seed", "1"),
        *("-chardev", f"file,id=console,path={quoted}", "-serial", "chardev:console"),
        *("-kernel", str(kernel()), "-initrd", str(image), "-append", f"{_ARGUMENTS} {arguments}"),
    ]


def _run(name: str, memory_mib: int, arguments: str, tree: Tree, how: How) -> Console:
    with tempfile.TemporaryDirectory(prefix="trapless-power-") as temporary:
        work_dir = how.work_dir or Path(temporary)
        work_dir.mkdir(parents=True, exist_ok=True)
        image, output, log = (work_dir / part for part in ("initramfs", "console.log", "qemu.log"))
        initramfs.pack(tree, image, compress=False)
        output.unlink(missing_ok=True)
        how.progress.booting(name, 1)
        with session.process([*argv(memory_mib, image, arguments, output), *how.qemu], log) as running:
            text = _follow(name, running, output, how.timeout_s)
        complaint = log.read_text(errors="replace")
    if running.returncode or not _DONE.search(text):
        raise LabError(
            f"{name} did not do all it was asked for:\n{_last_lines(text)}\n{_last_lines(complaint)}"
        )
    if warnings := complaints(text):
        raise LabError(f"the kernel of {name}, or of its guest, complained:\n" + "\n".join(warnings))
    lasted = _LASTED.search(text)
    how.progress.finished("all", int(lasted[1]) / TICKS_PER_SECOND if lasted else 0.0)
    return Console(text)


def _follow(name: str, running: subprocess.Popen[bytes], output: Path, timeout_s: float) -> str:
    """Watch until QEMU has ended, which a panic makes it do too."""
    since = time.monotonic()
    while running.poll() is None and time.monotonic() - since <= timeout_s:
        time.sleep(_POLL_S)
    text = output.read_bytes().decode(errors="replace").replace("\r\n", "\n") if output.exists() else ""
    if running.returncode is None:
        raise LabError(f"{name} timed out after {timeout_s:g} s:\n{_last_lines(text)}")
    return text


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:]) or "    (nothing)"
