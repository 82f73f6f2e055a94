# SPDX-License-Identifier: Apache-2.0 OR MIT
"""PV domUs: stock kernel, the lab's init, started by Debian's own toolstack in a machine's dom0.

Invariant: a command in a domU is a step of dom0, with its output and its exit code, so a transcript holds the
steps of both in the order in which they happened; the caller's files replace the lab's.
"""

import base64
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import host, kernels
from ..errors import LabError
from . import guest, initramfs, pair
from .initramfs import File, Link, Tree
from .pair import Pair
from .script import Step
from .transcript import Transcript, complaints

MODULES = ("xen-evtchn", "xen-gntdev", "xen-gntalloc", "xenfs")
"""The modules of dom0, for ``runner.run``."""

PCI_MODULES = (*MODULES, "xen-pciback")
"""The modules of dom0 for a domU with devices."""

_KERNEL = "/domu/vmlinux"
_INIT = guest.SOURCES / "domu-init"
_TOOL = guest.SOURCES / "domu"
_HELPER = "libxl-save-helper"
_TOOLS = ("xl", "xenstored", "xenconsoled", "xen-init-dom0", _HELPER)
_XENSTORE_TOOLS = ("xenstore-read", "xenstore-exists")
_LIBRARIES = "lib/x86_64-linux-gnu"

CONSOLE = "domU consoles"
"""The name of the step ``console``: its output repeats that of all steps in domUs."""

# The limit is a line of a terminal in raw mode; base64 makes a command a third longer.
_LONGEST_COMMAND = 3000
_CREATE_TIMEOUT_S = 240


@dataclass(frozen=True)
class DomU:
    """One PV domU without disk or network; ``modules`` are stock ones, for its own kernel.

    With ``passthrough`` it may be given devices, so its IOMMU tables follow its page types; ``devices`` are
    PCI functions of dom0, as ``0000:00:03.0``, that it has from the start; ``assignable`` comes first.
    ``programs`` are the lab's (guest.py) that it carries. With ``native_tsc`` it reads the TSC itself: QEMU's
    processor has no invariant one, and where there is none Xen emulates each RDTSC of a domU, but not dom0's.
    """

    name: str = "guest"
    memory_mib: int = 256
    vcpus: int = 1
    files: Tree = field(default_factory=dict)
    modules: Sequence[str] = ()
    linux_args: tuple[str, ...] = ()
    passthrough: bool = False
    devices: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    native_tsc: bool = False

    def __post_init__(self) -> None:
        if self.devices and not self.passthrough:
            raise ValueError(f"domU {self.name!r}: a device without an IOMMU of its own")
        if not re.fullmatch("[a-z][a-z0-9]*", self.name):
            raise ValueError(f"domU {self.name!r}: a name is small letters and digits")

    def create(self) -> Step:
        """Return the step that starts it and waits until it takes commands; ``toolstack`` comes first."""
        return Step(f"create {self.name}", f"domu create {self.name}", timeout_s=_CREATE_TIMEOUT_S)

    def step(self, name: str, command: str, timeout_s: float = 120, expect: int | None = 0) -> Step:
        """Return a step that runs a command in the domU; its result is the command's."""
        return Step(name, self.run(command), timeout_s, expect)

    def inside(self, step: Step) -> Step:
        """Return a step of dom0 as one of the domU."""
        return self.step(step.name, step.command, step.timeout_s, step.expect)

    def run(self, command: str) -> str:
        """Return the shell command of dom0 that runs ``command`` in the domU."""
        if len(command) > _LONGEST_COMMAND:
            raise ValueError(f"domU {self.name}: a command of more than {_LONGEST_COMMAND} characters")
        if missing := set(guest.started(command)) - set(self.programs):
            raise ValueError(f"domU {self.name} does not carry {', '.join(sorted(missing))}: {command}")
        coded = base64.b64encode(f"{command}\n".encode()).decode()
        return f"domu run {self.name} {coded}"

    def destroy(self) -> Step:
        """Return a step that destroys it and waits until its name is free; see ``gone``."""
        named = f"while xl list {self.name} >/dev/null 2>&1; do sleep 0.1; done"
        return Step(f"destroy {self.name}", f"xl destroy {self.name} && {named}")

    def gone(self) -> str:
        """Return the shell command of dom0 that waits until it is gone from Xen's list."""
        # Its name goes first: while any of its pages is mapped, it is in the list without a name.
        return (
            f"while xl list {self.name} >/dev/null 2>&1 || xl list | grep -F '(null)' >/dev/null; "
            "do sleep 0.1; done"
        )

    def config(self) -> str:
        """Return its configuration, as xl reads it."""
        extra = " ".join(("console=hvc0", "panic=-1", "loglevel=5", *self.linux_args))
        lines = (
            f'name = "{self.name}"',
            'type = "pv"',
            f'kernel = "{_KERNEL}"',
            f'ramdisk = "/domu/{self.name}.initramfs"',
            f'extra = "{extra}"',
            f"memory = {self.memory_mib}",
            f"vcpus = {self.vcpus}",
            f'passthrough = "{"enabled" if self.passthrough else "disabled"}"',
            f"pci = [{', '.join(repr(device) for device in self.devices)}]",
            *(('tsc_mode = "native"',) if self.native_tsc else ()),
            *(f'on_{event} = "destroy"' for event in ("poweroff", "reboot", "crash", "watchdog")),
        )
        return "".join(f"{line}\n" for line in lines)

    def image(self, kernel: host.Kernel) -> bytes:
        """Return its packed root file system."""
        modules = [path for name in self.modules for path in host.module_files(kernel, name)]
        tree: dict[str, File | Link] = {"/init": File(_INIT, 0o755)}
        tree |= initramfs.busybox(host.busybox())
        tree |= initramfs.modules(modules)
        tree |= guest.tree(*self.programs)
        with tempfile.TemporaryDirectory(prefix="trapless-domu-") as directory:
            packed = Path(directory) / "initramfs.gz"
            initramfs.pack({**tree, **self.files}, packed)
            return packed.read_bytes()


def toolstack() -> Step:
    """Return the step that starts the daemons that xl needs in dom0."""
    return Step("start the toolstack", "domu toolstack")


def assignable(device: str) -> Step:
    """Return the step that takes a PCI function from dom0's drivers; needs ``PCI_MODULES`` there."""
    return Step(f"assignable {device}", f"xl pci-assignable-add {device}")


def console() -> Step:
    """Return the step that prints the domUs' consoles, for ``kernel_warnings``."""
    return Step(CONSOLE, "domu console")


def kernel_warnings(transcript: Transcript) -> list[str]:
    """Return the kernel warnings on the domUs' consoles."""
    return complaints(transcript[CONSOLE].output)


def require_quiet(transcript: Transcript) -> None:
    """Raise LabError if a domU's kernel has warned: measurements in it are then invalid."""
    if found := kernel_warnings(transcript):
        raise LabError("a domU's kernel complained:\n" + "\n".join(found))


def tree(*domus: DomU, of: Pair = pair.DEFAULT) -> Tree:
    """Return the guest files that dom0 needs to start ``domus``: the toolstack, a kernel, their own files.

    Xen's toolstack and the domUs' kernel are those of a pair.
    """
    kernel = kernels.kernel(of.linux)
    root, xen = of.xen_root, host.xen(of.xen_root)
    files: dict[str, File | Link] = {
        "/bin/domu": File(_TOOL, 0o755),
        _KERNEL: File(host.unpack_kernel(kernel.image)),
    }
    for name in _TOOLS:
        files |= initramfs.program(xen.tool(name), root)
    for name in _XENSTORE_TOOLS:
        files |= initramfs.program(host.file(root / "usr/bin" / name, "xenstore-utils"), root)
    # xl does not look for its helper on the path, and cancels its threads with a library that is not linked.
    files[f"/{xen.tool(_HELPER).relative_to(root)}"] = Link(f"/bin/{_HELPER}")
    cancels = host.thread_library(root)
    files[f"/{_LIBRARIES}/{cancels.name}"] = File(cancels, 0o755)
    files["/etc/xen/xl.conf"] = File(b"")
    for domu in domus:
        files[f"/domu/{domu.name}.cfg"] = File(domu.config().encode())
        files[f"/domu/{domu.name}.initramfs"] = File(domu.image(kernel))
    return files
