# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command line of Bochs, the free emulator whose processor has Intel's page-modification logging (PML).

Invariant: the machine boots the same kernel and initramfs as QEMU's would, with the same two serial ports.
Its clock counts instructions, of which Bochs executes some 60 million a second, so no figure from here is a
time.
"""

import subprocess
from pathlib import Path

from .. import host
from ..errors import LabError
from . import qemu
from .machine import Machine
from .qemu import Images, Outputs

# Its CPUID reports a wrong clock frequency, with which the kernel would program timers that fire a hundred
# times too early, and spend most of its time on them; so the boot loader gives it this one.
INSTRUCTIONS_A_SECOND = 300_000_000

# The kernel takes minutes to unpack itself.
BOOT_TIMEOUT_S = 1800

# The files needed of each package; scripts/setup installs them only for make check-long, the only target that
# boots this machine.
_NEEDED = {
    "bochs": Path("/usr/bin/bochs-bin"),
    "bochs-term": Path("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so"),
    "bochsbios": Path("/usr/share/bochs/BIOS-bochs-latest"),
    "vgabios": Path("/usr/share/vgabios/vgabios.bin"),
    "isolinux": Path("/usr/lib/ISOLINUX/isolinux.bin"),
    "syslinux-common": Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"),
    "xorriso": Path("/usr/bin/xorriso"),
}

_LOADER = """default linux
prompt 0
label linux
  kernel /vmlinuz
  initrd /initrd.gz
  append {arguments}
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
com2: enabled=1, mode=file, dev={steps}
log: {log}
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
"""


def missing() -> list[str]:
    """Return the Debian packages that this machine needs and this host lacks."""
    return [package for package, path in _NEEDED.items() if not path.exists()]


def argv(machine: Machine, images: Images, outputs: Outputs, directory: Path) -> list[str]:
    """Return the command that runs ``machine``; its input files are created in ``directory``."""
    if lacking := missing():
        raise LabError(f"machine {machine.name} needs the Debian packages {' '.join(lacking)}")
    settings, commands = directory / "bochsrc", directory / "commands"
    settings.write_text(
        _SETTINGS.format(
            memory=machine.memory_mib,
            cpu=machine.cpu,
            ips=INSTRUCTIONS_A_SECOND,
            console=outputs.console,
            steps=outputs.steps,
            log=directory / "bochs.log",
            bios=_NEEDED["bochsbios"],
            vga=_NEEDED["vgabios"],
            disc=_make_disc(machine, images, directory),
        )
    )
    commands.write_text("continue\n")
    # Its screen is a terminal whose output is not used.
    return ["env", "TERM=vt100", str(_NEEDED["bochs"]), "-q", "-f", str(settings), "-rc", str(commands)]


def _make_disc(machine: Machine, images: Images, directory: Path) -> Path:
    content, disc = directory / "disc", directory / "disc.iso"
    content.mkdir(exist_ok=True)
    sources = {"vmlinuz": images.kernel, "initrd.gz": images.initramfs}
    sources |= {_NEEDED[package].name: _NEEDED[package] for package in ("isolinux", "syslinux-common")}
    for name, source in sources.items():
        (content / name).write_bytes(source.read_bytes())
    arguments = f"{qemu.linux_args(machine)} tsc_early_khz={INSTRUCTIONS_A_SECOND // 1000}"
    (content / "isolinux.cfg").write_text(_LOADER.format(arguments=arguments))
    made = subprocess.run(
        [
            *(host.tool("xorriso", "xorriso"), "-as", "mkisofs", "-quiet", "-o", disc, "-b", "isolinux.bin"),
            *("-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", content),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise LabError(f"xorriso makes no disc:\n{made.stderr}")
    return disc
