# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs a script of steps in a machine.

Invariant: the guest holds the host's stock binaries, the lab's init and what the caller gave, and the
caller's files are the ones that win.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .. import host
from ..progress import Progress
from . import efi, epml, guest, initramfs, qemu, session, trace
from .initramfs import File, Tree
from .machine import Machine
from .script import Step, StepLog, render
from .transcript import Transcript

DISK_BYTES = 64 << 20

# Two in a row stood still once, beside three other machines on two CPUs.
_BOOTS = 5
# A boot of several CPUs that has said nothing for this long stands still; beside one other, a whole one takes
# half a minute.
_SILENCE_S = 90


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
) -> Transcript:
    """Boot ``machine``, run ``steps`` and return what happened.

    ``files`` are added to the guest; ``modules`` are stock modules, loaded with their dependencies before
    the first step. If the machine has a disk, ``make_disk`` makes its raw image in the directory it is
    given; the guest's writes do not reach it. Logs are kept in ``work_dir`` if there is one. ``plugins``
    watch the machine from its first instruction.
    """
    with contextlib.ExitStack() as stack:
        if work_dir is None:
            work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trapless-lab-")))
        else:
            work_dir.mkdir(parents=True, exist_ok=True)
        log = StepLog(steps, secrets.token_hex(8))
        kernel = host.kernel()
        image = work_dir / "initramfs.gz"
        initramfs.pack(_guest_tree(machine, kernel, log, modules, files or {}), image)
        disk = make_disk(work_dir) if machine.disk else None
        images = _images(machine, kernel.image, image, work_dir)
        outputs = qemu.Outputs(
            work_dir / "console.log", work_dir / "steps.log", work_dir / "trace.log", work_dir / "qemu.log"
        )
        argv = qemu.argv(host.qemu(), machine, replace(images, disk=disk), outputs, plugins)
        watched = _boot(machine, argv, log, outputs, progress or Progress())
        with outputs.trace.open() as lines:
            buckets = trace.parse(lines)
        return Transcript(machine, tuple(log.results), buckets, watched.console)


def _images(machine: Machine, kernel: Path, initramfs_image: Path, work_dir: Path) -> qemu.Images:
    """What the machine boots, its own disk apart."""
    plain = qemu.Images(kernel, initramfs_image)
    if not machine.xen:
        return plain
    xen = machine.image or host.XEN_IMAGE
    if machine.efi:
        disk = efi.make_disk(machine, xen, kernel, initramfs_image, work_dir)
        return replace(plain, efi_disk=disk, firmware=efi.firmware())
    return replace(plain, xen=host.unpack_xen(work_dir, xen))


def _boot(
    machine: Machine, argv: Sequence[str], log: StepLog, outputs: qemu.Outputs, progress: Progress
) -> session.Session:
    """Run the machine to its end. With several CPUs QEMU's emulation of stock Xen and Linux sometimes stands
    still before the first step; such a boot is made again, a few times at most, and nothing later ever is.
    """
    left = _BOOTS if machine.cpus > 1 else 1
    while True:
        for stale in (outputs.console, outputs.steps, outputs.trace):
            stale.unlink(missing_ok=True)
        patience = _SILENCE_S if left > 1 else session.BOOT_TIMEOUT_S
        watched = session.Session(machine.name, log, outputs, progress, patience)
        try:
            with (
                epml.wired(machine, outputs.complaints.with_name(epml.COUNTS)) as wires,
                session.process([*argv, *wires.argv], outputs.complaints, wires.descriptors) as running,
            ):
                watched.follow(running)
        except session.BootTimeout as error:
            left -= 1
            if not left:
                raise
            progress.again(str(error).partition("\n")[0])
        else:
            return watched


def _guest_tree(
    machine: Machine, kernel: host.Kernel, log: StepLog, modules: Sequence[str], files: Tree
) -> Tree:
    names = [*(["xen-privcmd"] if machine.xen else []), *modules]
    tree: dict[str, File | initramfs.Link] = {"/init": File(guest.INIT, 0o755)}
    tree |= initramfs.busybox(host.busybox())
    tree |= initramfs.modules([path for name in names for path in host.module_files(kernel.release, name)])
    tree |= guest.tree(guest.MARK, *guest.named(step.command for step in log.steps))
    if machine.xen:
        tree |= initramfs.program(host.xen_livepatch())
    return {**tree, **render(log.steps, log.nonce), **files}
