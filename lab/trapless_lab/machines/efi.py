# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The disk from which UEFI starts Xen: a FAT file system with Xen, its settings, kernel and initramfs.

Invariant: Xen and Linux get the same command lines and files as from the multiboot loader.
"""

import subprocess
from pathlib import Path

from .. import host
from . import qemu
from .machine import Machine

# UEFI starts the first name by itself; Xen looks for its settings under the same one.
_LOADER = "BOOTX64"
_FIRMWARE = Path("/usr/share/OVMF")
_SPARE_BYTES = 8 << 20


def firmware() -> tuple[Path, Path]:
    """Return the firmware's code and an empty set of its variables."""
    return host.file(_FIRMWARE / "OVMF_CODE_4M.fd", "ovmf"), host.file(_FIRMWARE / "OVMF_VARS_4M.fd", "ovmf")


def settings(machine: Machine) -> str:
    """Return the file that Xen reads its options from."""
    return "\n".join(
        (
            "[global]",
            "default=machine",
            "[machine]",
            f"options={qemu.xen_args(machine)}",
            f"kernel=vmlinuz {qemu.linux_args(machine)}",
            "ramdisk=initramfs.gz",
            "",
        )
    )


def make_disk(machine: Machine, xen: Path, kernel: Path, initramfs: Path, directory: Path) -> Path:
    """Make the disk in ``directory``."""
    disk, config = directory / "efi.img", directory / "xen.cfg"
    config.write_text(settings(machine))
    parts = {
        f"{_LOADER}.EFI": xen,
        f"{_LOADER}.CFG": config,
        "vmlinuz": kernel,
        "initramfs.gz": initramfs,
    }
    size = sum(part.stat().st_size for part in parts.values()) + _SPARE_BYTES
    with disk.open("wb") as file:
        file.truncate(max(size, 64 << 20))

    def run(name: str, *arguments: str) -> None:
        subprocess.run([host.tool(name, "mtools"), "-i", disk, *arguments], check=True)

    run("mformat", "-F", "::")
    run("mmd", "::/EFI", "::/EFI/BOOT")
    for name, part in parts.items():
        run("mcopy", str(part), f"::/EFI/BOOT/{name}")
    return disk
