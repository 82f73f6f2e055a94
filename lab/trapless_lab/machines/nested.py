# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A machine inside a machine: trapless-vmm on the stock kvm_amd of an emulated host.

Invariant: like the outer guest, the inner one contains stock binaries and the caller's files. Its output is
the output of the step that ran it, and only a script that ran to its end prints the last line.
"""

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from .. import artifacts, host
from ..errors import LabError
from . import guest, initramfs
from .initramfs import File, Tree
from .machine import MACHINES, Machine
from .script import Step, StepResult

# QEMU emulates only AMD's virtualisation. TCG must support all features of the model.
OUTER_CPU = "EPYC,+svm,+npt"
OUTER_MODULES = ("kvm-amd",)
_VMM = "trapless-vmm"

# The emulated processor's CPUID reports a wrong size of the XSAVE area; the kernel would print a long
# warning, and not use it.
_COMMAND_LINE = "console=ttyS0 reboot=k panic=-1 loglevel=5 noxsave"

# Without ACPI there is no power-off: the reset ends the inner machine.
_BOOTED = "inner: begin"
_INIT = f"""#!/bin/busybox sh
export PATH=/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
exec </dev/null >/dev/console 2>&1
stty -F /dev/console -onlcr
echo "{_BOOTED}"
sh /script
echo "inner: end $?"
reboot -f
"""
_OUTPUT = re.compile(rf"^{_BOOTED}\n(.*)^inner: end (\d+)\n", re.MULTILINE | re.DOTALL)


def machine(name: str = "bare") -> Machine:
    """Return a machine whose KVM runs inner guests."""
    # On a busy host the kernel's timer check comes too late, and with this processor the kernel panics.
    return replace(MACHINES[name], name=f"{name}-nested", cpu=OUTER_CPU, linux_args=("no_timer_check",))


@dataclass(frozen=True)
class Inner:
    """An inner guest; ``script`` is what its shell runs, ``environment`` the VMM's variables.

    With less than 512 MiB the kernel makes no huge pages by itself.
    """

    name: str
    script: str
    files: Tree
    memory: str = "640MiB"
    cpus: int = 1
    environment: str = ""

    def step(self, timeout_s: float = 240) -> Step:
        """Return the outer machine's step that runs it."""
        command = (
            f"{self.environment} {_VMM} --kernel /inner/kernel --initramfs /inner/{self.name} "
            f"--memory {self.memory} --cpus {self.cpus} --counts "
            f"--cmdline '{_COMMAND_LINE}'"
        )
        return Step(self.name, command, timeout_s=timeout_s, boots=_BOOTED)


def vmm_files(vmm: Path | None = None) -> Tree:
    """Return the guest file of the VMM."""
    return initramfs.program(vmm or artifacts.program(_VMM))


def files(*inner: Inner, vmm: Path | None = None) -> Tree:
    """Return the files that the outer guest needs to run inner guests."""
    # The kernel is unpacked here: if the inner machine did it, it would take a minute.
    kernel = File(host.unpack_kernel(host.kernel().image))
    tree = {**vmm_files(vmm), "/inner/kernel": kernel}
    return tree | {f"/inner/{guest.name}": File(_pack(guest)) for guest in inner}


def _pack(inner: Inner) -> bytes:
    tree = {
        "/init": File(_INIT.encode(), 0o755),
        "/script": File(inner.script.encode()),
        **initramfs.busybox(host.busybox()),
        **guest.tree(*guest.named([inner.script])),
        **inner.files,
    }
    with tempfile.TemporaryDirectory(prefix="trapless-inner-") as directory:
        archive = Path(directory) / "initramfs.gz"
        initramfs.pack(tree, archive)
        return archive.read_bytes()


def output(printed: str) -> str:
    """Return what the script of an inner guest printed, if it ended with exit code 0."""
    text = printed.replace("\r\n", "\n")
    found = _OUTPUT.search(text)
    if found is None or found[2] != "0":
        raise LabError(f"the inner guest's script failed or did not end:\n{text}")
    return found[1]


_SECTION = "section: "


def section(name: str) -> str:
    """Return the shell's line that begins a part of an inner guest's script."""
    return f"echo '{_SECTION}{name}'"


def sections(result: StepResult) -> dict[str, StepResult]:
    """Return what each part of an inner guest's script printed, as results of steps."""
    parts = re.split(rf"^{_SECTION}(.*)\n", output(result.output), flags=re.MULTILINE)
    return {
        name: StepResult(Step(name, ""), text.encode(), 0, 0)
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
