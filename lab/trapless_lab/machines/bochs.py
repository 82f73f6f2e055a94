# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A machine in Bochs: the one free emulator whose processor has Intel's page-modification logging (PML).

Invariant: the machine holds stock binaries and what the caller gave; only a script that ran to its end with
exit code 0 has an output. Its clock counts instructions, of which Bochs executes some 60 million a second, so
nothing that is measured here is a time.
"""

import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .. import host
from ..errors import LabError
from . import initramfs, session
from .initramfs import File, Tree

CPU = "corei7_skylake_x"
MEMORY_MIB = 1024
# Its CPUID tells another clock than it has. A kernel that believes it programs timers that fire a hundred
# times too early, and spends most of the machine on them; so the boot loader tells it this one.
INSTRUCTIONS_A_SECOND = 300_000_000

# What is needed of each package; scripts/setup installs them only for make check-long, which alone boots this
# machine.
_NEEDED = {
    "bochs": Path("/usr/bin/bochs-bin"),
    "bochs-term": Path("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so"),
    "bochsbios": Path("/usr/share/bochs/BIOS-bochs-latest"),
    "vgabios": Path("/usr/share/vgabios/vgabios.bin"),
    "isolinux": Path("/usr/lib/ISOLINUX/isolinux.bin"),
    "syslinux-common": Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"),
    "xorriso": Path("/usr/bin/xorriso"),
}

_INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tracefs tracefs /sys/kernel/tracing
for module in $(cat /modules/order); do
	insmod "/modules/$module"
done
exec </dev/null >/dev/console 2>&1
stty -F /dev/console -onlcr
echo "bochs: begin"
sh /script
echo "bochs: end $?"
while :; do sleep 1000; done
"""
_OUTPUT = re.compile(r"^bochs: begin\n(.*)^bochs: end (\d+)\n", re.MULTILINE | re.DOTALL)

_BOOT = """default linux
prompt 0
label linux
  kernel /vmlinuz
  initrd /initrd.gz
  append console=ttyS0 panic=-1 loglevel=4 tsc_early_khz={khz}
"""

# Without a debugger's command Debian's Bochs waits for one; without "sync" its clock counts instructions.
_SETTINGS = """config_interface: textconfig
display_library: term
plugin_ctrl: unmapped=1, biosdev=1, speaker=0, extfpuirq=1, parallel=0, serial=1
memory: guest={memory}, host={memory}
romimage: file={bios}
vgaromimage: file={vga}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path={disc}, status=inserted
boot: cdrom
cpu: model={cpu}, count=1, ips={ips}, reset_on_triple_fault=0
clock: sync=none
com1: enabled=1, mode=file, dev={console}
log: {log}
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
"""

_POLL_S = 1
_TAIL = 3000


def missing() -> list[str]:
    """Return the Debian packages that this machine needs and this host has not."""
    return [package for package, path in _NEEDED.items() if not path.exists()]


def run(
    script: str, files: Tree, modules: Sequence[str], *, timeout_s: float, work_dir: Path | None = None
) -> str:
    """Boot the stock kernel, load stock modules, run a shell's script, and return what it printed.

    Logs are kept in ``work_dir`` if there is one.
    """
    with tempfile.TemporaryDirectory(prefix="trapless-bochs-") as temporary:
        directory = work_dir or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        console, commands = directory / "console.log", directory / "commands"
        settings = directory / "bochsrc"
        settings.write_text(
            _SETTINGS.format(
                **{"memory": MEMORY_MIB, "cpu": CPU, "ips": INSTRUCTIONS_A_SECOND},
                **{"console": console, "log": directory / "bochs.log"},
                **{"bios": _NEEDED["bochsbios"], "vga": _NEEDED["vgabios"]},
                disc=_make_disc(directory, script, files, modules),
            )
        )
        commands.write_text("continue\n")
        console.unlink(missing_ok=True)
        # Its screen is a terminal's, which nobody looks at.
        argv = ["env", "TERM=vt100", str(_NEEDED["bochs"]), "-q", "-f", str(settings), "-rc", str(commands)]
        with session.process(argv, directory / "screen.log") as running:
            return _follow(running, console, timeout_s)


def _make_disc(directory: Path, script: str, files: Tree, modules: Sequence[str]) -> Path:
    kernel = host.kernel()
    paths = [path for name in modules for path in host.module_files(kernel.release, name)]
    tree = {
        "/init": File(_INIT.encode(), 0o755),
        "/script": File(script.encode()),
        **initramfs.busybox(host.busybox()),
        **initramfs.modules(paths),
        **files,
    }
    content, disc = directory / "disc", directory / "disc.iso"
    content.mkdir(exist_ok=True)
    initramfs.pack(tree, content / "initrd.gz")
    for name, source in {"vmlinuz": kernel.image}.items() | {
        (_NEEDED[package].name, _NEEDED[package]) for package in ("isolinux", "syslinux-common")
    }:
        (content / name).write_bytes(source.read_bytes())
    (content / "isolinux.cfg").write_text(_BOOT.format(khz=INSTRUCTIONS_A_SECOND // 1000))
    made = subprocess.run(
        [
            *(_NEEDED["xorriso"], "-as", "mkisofs", "-quiet", "-o", disc, "-b", "isolinux.bin"),
            *("-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", content),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise LabError(f"xorriso makes no disc:\n{made.stderr}")
    return disc


def _follow(running: subprocess.Popen[bytes], console: Path, timeout_s: float) -> str:
    """Watch until the script has ended; the machine is then killed, as it has nothing to lose."""
    since = time.monotonic()
    while True:
        ended = running.poll() is not None
        text = console.read_bytes().decode(errors="replace").replace("\r\n", "\n") if console.exists() else ""
        if found := _OUTPUT.search(text):
            if found[2] != "0":
                raise LabError(f"the script in Bochs ended with exit code {found[2]}:\n{found[1]}")
            return found[1]
        if ended or "Kernel panic" in text or time.monotonic() - since > timeout_s:
            why = f"exit code {running.returncode}" if ended else "a panic or too slow"
            raise LabError(f"Bochs did not run the script to its end ({why}):\n{text[-_TAIL:]}")
        time.sleep(_POLL_S)
