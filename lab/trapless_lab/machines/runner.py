# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Boots machines, and runs scripts of steps in those that take them.

Invariant: there is no other way to start a machine, whatever its processor and its emulator. A guest of
``run`` contains the host's stock binaries, the lab's init, the programs that its steps name and the caller's
files, which replace the others.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from .. import artifacts, host, kernels
from ..progress import Progress
from . import bochs, efi, epml, guest, initramfs, kept, monitor, qemu, session, trace
from .initramfs import File, Tree
from .machine import Machine
from .script import Log, Step, StepLog, render
from .transcript import Transcript

DISK_BYTES = 64 << 20
TRACE = "trace.log"

# Two boots in a row hung once, beside three other machines on two CPUs.
_BOOTS = 5
# A boot of several CPUs without output for this long hangs; beside one other machine, a whole boot takes half
# a minute.
_SILENCE_S = 60
# A boot inside a machine takes 10 s, and a minute beside other machines. One hung, of some hundreds: the
# inner kernel took a timer interrupt while its interrupts were off, in the handler of the tick before, and
# waited for a lock that this held. Only KVM and the emulated processor deliver its interrupts; which of
# them is wrong was not found out.
_INNER_BOOT_S = 150.0


def empty_disk(directory: Path) -> Path:
    """Make a disk full of zeros."""
    disk = directory / "disk.img"
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    return disk


def run(
    machine: Machine,
    steps: Sequence[Step],
    *,
    files: Tree | None = None,
    modules: Sequence[str] = (),
    make_disk: Callable[[Path], Path] = empty_disk,
    progress: Progress | None = None,
    work_dir: Path | None = None,
    plugins: Sequence[qemu.Plugin] = (),
    resume: bool = False,
) -> Transcript:
    """Boot a PC or an arm64 machine, run ``steps`` and return what happened.

    ``files`` are added to the guest, and the programs of guest.py that the steps name; ``modules`` are stock
    modules of a PC, loaded with their dependencies before the first step. If the machine has a disk,
    ``make_disk`` makes its raw image in the directory it is given; the guest's writes do not reach it. Logs
    are kept in ``work_dir`` if there is one. ``plugins`` watch the machine from its first instruction.
    ``resume``: if ``work_dir`` has the logs of such a run, that is what is returned (kept.py).
    """
    log = StepLog(steps, secrets.token_hex(8))
    with _directory(work_dir) as directory:
        tree = _guest_tree(machine, log, modules, files or {})
        outputs = _outputs(machine, directory)
        is_noted = bool(work_dir) and not machine.disk and not plugins
        state = kept.digest(machine, _kernel(machine), steps, tree) if is_noted else ""
        if resume and is_noted and (old := kept.log(directory, state, steps, outputs)):
            log, console = old, outputs.console.read_text(errors="replace")
        else:
            kept.forget(directory)
            console = boot(
                machine, tree, log, directory, make_disk=make_disk, progress=progress, plugins=plugins
            )
            if is_noted:
                kept.note(directory, state, log)
        with outputs.trace.open() as lines:
            buckets = trace.parse(lines)
        return Transcript(machine, tuple(log.results), buckets, console)


@contextlib.contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="trapless-lab-") as temporary:
            yield Path(temporary)
    else:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted


def boot(
    machine: Machine,
    tree: Tree,
    log: Log,
    directory: Path,
    *,
    make_disk: Callable[[Path], Path] = empty_disk,
    progress: Progress | None = None,
    plugins: Sequence[qemu.Plugin] = (),
) -> str:
    """Boot a machine of any kind with ``tree`` as its initramfs, and return its console's output.

    ``log`` reads the machine's log of its steps. The machine's files stay in ``directory``; the trace is
    ``TRACE``.
    """
    image = directory / "initramfs.gz"
    # If every instruction of the boot is measured, it must not include unpacking.
    initramfs.pack(tree, image, compress=machine.architecture != "power")
    disk = make_disk(directory) if machine.disk else None
    images = replace(_images(machine, _kernel(machine), image, directory), disk=disk)
    outputs = _outputs(machine, directory)
    argv = _argv(machine, images, outputs, plugins, directory)
    return _follow(machine, argv, log, outputs, progress or Progress()).console


def _outputs(machine: Machine, directory: Path) -> qemu.Outputs:
    console = directory / "console.log"
    steps = console if machine.architecture == "power" else directory / "steps.log"
    return qemu.Outputs(console, steps, directory / TRACE, directory / "emulator.log")


def _kernel(machine: Machine) -> Path:
    if machine.kernel:
        return machine.kernel
    if machine.architecture == "power":
        return artifacts.power("kernel", "vmlinux")
    if machine.architecture == "arm64":
        return artifacts.arm64_kernel(machine.page_kib)
    image = kernels.kernel(machine.linux).image
    return image if machine.unpacks else host.vmlinux(image)


def _argv(
    machine: Machine,
    images: qemu.Images,
    outputs: qemu.Outputs,
    plugins: Sequence[qemu.Plugin],
    directory: Path,
) -> list[str]:
    if machine.emulator == "bochs":
        return bochs.argv(machine, images, outputs, directory)
    program, data = host.qemu(machine.architecture), host.qemu_data()
    return qemu.argv(program, machine, images, outputs, plugins, data)


def _images(machine: Machine, kernel: Path, initramfs_image: Path, work_dir: Path) -> qemu.Images:
    """Return the files that the machine boots, except for its own disk."""
    plain = qemu.Images(kernel, initramfs_image)
    if not machine.xen:
        return plain
    xen = machine.image or host.xen(machine.xen_root).image
    if machine.efi:
        disk = efi.make_disk(machine, xen, kernel, initramfs_image, work_dir)
        return replace(plain, efi_disk=disk, firmware=efi.firmware())
    return replace(plain, xen=host.unpack_xen(work_dir, xen))


def _follow(
    machine: Machine, argv: Sequence[str], log: Log, outputs: qemu.Outputs, progress: Progress
) -> session.Session:
    """Run the machine to its end. With several CPUs QEMU's emulation of stock Xen and Linux sometimes hangs
    before the first step, or executes a breakpoint that is gone (monitor.py), then or later; such a run is
    repeated from its boot, a few times at most. A run whose first step is a machine inside the machine that
    does not boot is repeated once. Nothing else that fails after the boot is ever repeated.
    """
    left = _BOOTS if machine.cpus > 1 else 1
    inner_left = 1
    is_asked = machine.cpus > 1 and machine.pc and machine.emulator == "qemu"
    while True:
        for file in (outputs.console, outputs.steps, outputs.trace):
            file.write_bytes(b"")
        try:
            with (
                epml.wired(machine, outputs.complaints.with_name(epml.COUNTS)) as wires,
                monitor.attached() if is_asked else contextlib.nullcontext() as asked,
                session.process(
                    [*argv, *wires.argv, *(asked.argv if asked else ())],
                    outputs.complaints,
                    wires.descriptors,
                ) as running,
            ):
                watched = session.Session(
                    machine.name,
                    log,
                    outputs,
                    progress,
                    silence_s=_SILENCE_S if left > 1 else None,
                    boot_s=bochs.BOOT_TIMEOUT_S if machine.emulator == "bochs" else None,
                    monitor=asked,
                    inner_boot_s=_INNER_BOOT_S if inner_left else None,
                )
                watched.follow(running, powers_off=machine.emulator == "qemu")
                return watched
        except session.InnerBootError as error:
            inner_left -= 1
            _begin_anew(log, progress, error)
        except session.EmulatorError as error:
            left -= 1
            if not left:
                raise
            _begin_anew(log, progress, error)


def _begin_anew(log: Log, progress: Progress, error: session.EmulatorError) -> None:
    log.restart()
    progress.again(str(error).partition("\n")[0])


def _stock_modules(machine: Machine, wanted: Sequence[str]) -> list[Path]:
    """Return stock modules and what they need; a kernel of our own has all that it needs built in."""
    if machine.kernel:
        if wanted:
            raise ValueError(f"machine {machine.name}: stock modules in a kernel that is not stock")
        return []
    kernel = kernels.kernel(machine.linux)
    names = [*(["xen-privcmd"] if machine.xen else []), *wanted]
    return [path for name in names for path in host.module_files(kernel, name)]


def _guest_tree(machine: Machine, log: StepLog, modules: Sequence[str], files: Tree) -> Tree:
    tree: dict[str, File | initramfs.Link] = {"/init": File(guest.INIT, 0o755)}
    tree["/port"] = File(f"{qemu.steps_port(machine)}\n".encode())
    programs = guest.named(step.command for step in log.steps)
    if machine.architecture == "arm64":
        if modules:
            raise ValueError(f"machine {machine.name}: stock modules of its kernel are not unpacked")
        tree |= initramfs.busybox(artifacts.arm64_debian("busybox"), like=host.busybox())
        tree |= initramfs.modules([])
        # There is no trace in which a marker would be seen.
        tree[f"/bin/{guest.MARK}"] = initramfs.Link("true")
    else:
        tree |= initramfs.busybox(host.busybox())
        tree |= initramfs.modules(_stock_modules(machine, modules))
        programs = [guest.MARK, *programs]
    tree |= guest.tree(*programs, architecture=machine.architecture)
    if machine.xen:
        xen_livepatch = host.xen_of(machine.image, machine.xen_root).tool("xen-livepatch")
        tree |= initramfs.program(xen_livepatch, machine.xen_root)
    return {**tree, **render(log.steps, log.nonce), **files}
