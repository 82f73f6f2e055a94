# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Machines as data.

Invariant: a machine is a value; everything that differs between two boots is a field of it, and every
combination that cannot boot or cannot be measured is refused when it is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from .. import host
from ..releases import INSTALLED, Linux

Architecture = Literal["x86", "power", "arm64"]
Emulator = Literal["qemu", "bochs"]
Iommu = Literal["strict", "relaxed"]
Vendor = Literal["intel", "amd"]
Dom0 = Literal["pv", "pvh"]
EpmlFault = Literal["drop-on-full", "stay-armed", "first-page", "other-version", "mute"]

# CPU features that a PVH dom0 needs: SVM, nested paging, and a page size that its own tables use.
_PVH_FEATURES = ("+svm", "+npt", "+pdpe1gb")

_E500 = "e500v2_v30"


@dataclass(frozen=True)
class Epml:
    """The model of a processor that logs its stores (plugins/epml.c): entries of a ring, and faults."""

    entries: int = 32768
    faults: tuple[EpmlFault, ...] = ()


@dataclass(frozen=True)
class Machine:
    """One bootable machine.

    ``architecture`` is its processor's, ``emulator`` what runs it: QEMU has a PC and, for Power, an e500
    board, for arm64 one without hardware to imitate; Bochs has a PC. arm64's kernel is Debian 13's, of
    which there are two: ``page_kib`` says which. ``iommu`` is how Xen treats its own domain: strict follows
    page types, relaxed maps all memory once; ``vendor`` is its device's, VT-d or AMD-Vi. ``cpu`` is QEMU's
    model; machines whose instruction counts are compared must have the same model, which determines the
    instructions that the kernel uses. With ``icount`` (QEMU's alone) the guest's clock counts instructions
    (2 ns each) and is deterministic. ``image`` is another build of Xen than the host's own; UEFI starts a
    .efi. ``xen_root`` is a folder with unpacked packages of another release's Xen and its toolstack.
    ``linux`` is the stock kernel of a PC, one of those of releases.py; ``kernel`` replaces the default
    kernel of the architecture. CPUs that take ``turns`` run one after another on one thread of the host,
    some thousand instructions each: QEMU 7.2's emulation of several CPUs at once may execute code that the
    guest has already replaced. Without ``kaslr`` Linux alone is booted from the unpacked ELF image of its
    package's file, at the address for which it is linked; with ``kaslr`` from that file, at a random
    address. With ``epml`` its processors are the model of docs/epml.md. ``cable`` gives it two network
    cards with a cable between them: no packet leaves the machine, so the host's speed has no influence on
    them. With ``exceptions`` QEMU's trace contains each exception of the processor, and of a PC's each
    load of CR3. ``board`` is QEMU's name of another board than the architecture's.
    """

    name: str
    description: str
    architecture: Architecture = "x86"
    page_kib: Literal[4, 16] = 4
    emulator: Emulator = "qemu"
    xen: bool = False
    dom0: Dom0 = "pv"
    iommu: Iommu | None = None
    vendor: Vendor = "intel"
    cpu: str = "qemu64"  # SMAP, which -cpu max has, crashes a PV dom0 early
    cpus: int = 1
    board: str = ""
    memory_mib: int = 2048
    icount: bool = False
    turns: bool = False
    disk: bool = False
    cable: bool = False
    epml: Epml | None = None
    exceptions: bool = False
    kaslr: bool = False
    linux: Linux = INSTALLED
    image: Path | None = None
    xen_root: Path = host.ROOT
    kernel: Path | None = None
    xen_args: tuple[str, ...] = ()
    linux_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.icount and self.cpus != 1:
            raise ValueError(f"machine {self.name}: icount works with one CPU only")
        if self.turns and self.cpus == 1:
            raise ValueError(f"machine {self.name}: one CPU cannot take turns")
        if self.iommu and not self.xen:
            raise ValueError(f"machine {self.name}: an IOMMU mode is a Xen option")
        if self.vendor != "intel" and not self.iommu:
            raise ValueError(f"machine {self.name}: the vendor of an IOMMU that it does not have")
        if self.dom0 != "pv" and not self.xen:
            raise ValueError(f"machine {self.name}: a PVH dom0 without Xen")
        if self.dom0 == "pvh":
            if self.iommu != "strict":
                raise ValueError(f"machine {self.name}: a PVH dom0 needs its IOMMU strict")
            if missing := [feature for feature in _PVH_FEATURES if feature not in self.cpu.split(",")]:
                raise ValueError(f"machine {self.name}: a PVH dom0 needs a CPU with {','.join(missing)}")
        if self.xen_args and not self.xen:
            raise ValueError(f"machine {self.name}: Xen options without Xen")
        if self.image and not self.xen:
            raise ValueError(f"machine {self.name}: an image of Xen without Xen")
        if self.linux != INSTALLED and not self.pc:
            raise ValueError(f"machine {self.name}: only a PC boots one of several stock kernels")
        if self.linux != INSTALLED and self.kernel:
            raise ValueError(f"machine {self.name}: a stock kernel and another one")
        if self.xen_root != host.ROOT and not self.xen:
            raise ValueError(f"machine {self.name}: packages of Xen without Xen")
        if self.kaslr and (self.xen or not self.pc):
            raise ValueError(f"machine {self.name}: only a PC's Linux without Xen can have a random address")
        if self.epml and self.xen:
            raise ValueError(f"machine {self.name}: the model of EPML supports Linux without Xen only")
        if not self.pc and (self.xen or self.disk or self.cable or self.epml):
            raise ValueError(f"machine {self.name}: other than QEMU's PC it has memory and a console only")
        if self.board and self.architecture != "power":
            raise ValueError(f"machine {self.name}: only Power has several boards")
        if self.page_kib != 4 and self.architecture != "arm64":
            raise ValueError(f"machine {self.name}: pages of {self.page_kib} KiB are arm64's alone")
        if self.emulator == "bochs" and (
            self.architecture != "x86" or self.cpus != 1 or self.icount or self.exceptions
        ):
            raise ValueError(f"machine {self.name}: Bochs has a PC with one CPU, its own clock and no trace")

    @property
    def pc(self) -> bool:
        """Whether it is QEMU's PC: the one that has Xen, several CPUs, devices, and a trace of them."""
        return (self.architecture, self.emulator) == ("x86", "qemu")

    def with_icount(self) -> "Machine":
        """Return the same machine with the deterministic clock."""
        return replace(self, icount=True)

    def with_cpu(self, cpu: str) -> "Machine":
        """Return the same machine with another model of a processor."""
        return replace(self, cpu=cpu)

    def with_turns(self) -> "Machine":
        """Return the same machine with CPUs that take turns."""
        return replace(self, turns=True)

    def with_kaslr(self) -> "Machine":
        """Return the same machine with a kernel that unpacks itself, to a random address."""
        return replace(self, kaslr=True)

    def with_linux(self, linux: Linux) -> "Machine":
        """Return the same machine with this stock kernel."""
        return replace(self, linux=linux)

    @property
    def unpacks(self) -> bool:
        """Whether the kernel's file is booted as packaged; if not, its ELF image is, in half the time."""
        return self.kaslr or self.efi or self.emulator == "bochs"

    @property
    def efi(self) -> bool:
        """Whether UEFI starts it."""
        return self.image is not None and self.image.suffix == ".efi"

    def with_image(self, image: Path) -> "Machine":
        """Return the same machine with this build of Xen."""
        return replace(self, image=image)

    def with_xen(self, root: Path) -> "Machine":
        """Return the same machine with the Xen and the toolstack of unpacked packages."""
        return replace(self, xen_root=root)

    def with_disk(self) -> "Machine":
        """Return the same machine with an AHCI disk."""
        return replace(self, disk=True)

    def with_epml(self, entries: int = 32768, faults: tuple[EpmlFault, ...] = ()) -> "Machine":
        """Return the same machine with the model of EPML."""
        return replace(self, epml=Epml(entries, faults))

    def with_cable(self) -> "Machine":
        """Return the same machine with two e1000 network cards, wired to each other."""
        return replace(self, cable=True)


def _table(*machines: Machine) -> Mapping[str, Machine]:
    return MappingProxyType({machine.name: machine for machine in machines})


MACHINES = _table(
    Machine("bare", "Linux alone"),
    Machine("bare-smp", "Linux alone", cpus=2),
    Machine("xen-strict", "PV dom0, IOMMU follows page types", xen=True, iommu="strict"),
    Machine("xen-strict-smp", "PV dom0, IOMMU follows page types", xen=True, iommu="strict", cpus=2),
    Machine("xen-relaxed", "PV dom0, IOMMU maps all of its memory", xen=True, iommu="relaxed"),
    Machine("xen-relaxed-smp", "PV dom0, IOMMU maps all of its memory", xen=True, iommu="relaxed", cpus=2),
    Machine(
        "xen-pvh",
        "PVH dom0: nested paging in place of PV page tables",
        xen=True,
        dom0="pvh",
        iommu="strict",
        cpu=",".join(("qemu64", *_PVH_FEATURES)),
    ),
    Machine(
        "bochs",
        "Linux alone, on a processor with Intel's page-modification logging",
        emulator="bochs",
        cpu="corei7_skylake_x",
        memory_mib=1024,
    ),
    # Pointers are signed (PAuth) by a simple function instead of the specified one, which costs an emulator
    # half of its time. All else that QEMU knows of is there, SVE among it.
    Machine(
        "arm64",
        "Debian 13's Linux alone, on arm64",
        architecture="arm64",
        cpu="max,pauth-impdef=on",
        cpus=2,
        memory_mib=1024,
    ),
    Machine(
        "arm64-16k",
        "Debian 13's Linux alone, on arm64 with pages of 16 KiB",
        architecture="arm64",
        page_kib=16,
        cpu="max,pauth-impdef=on",
        cpus=2,
        memory_mib=1024,
    ),
    # QEMU's board has multiples of 64 MiB, with an initramfs behind the first. A guest of KVM has 64, so bare
    # metal gets 66, the nearest possible size.
    Machine(
        "power",
        "Linux alone, on an e500v2",
        architecture="power",
        cpu=_E500,
        memory_mib=128,
        icount=True,
        linux_args=("mem=66M",),
    ),
    # A huge page for each guest of 64 MiB; four leave the host enough.
    Machine(
        "power-kvm",
        "Linux and guests in its KVM, on an e500v2",
        architecture="power",
        cpu=_E500,
        memory_mib=512,
        icount=True,
        linux_args=("hugepagesz=64M", "hugepages=4"),
    ),
    Machine(
        "power-kvm-smp",
        "Linux and a VM in its KVM, on two e500v2",
        architecture="power",
        cpu=_E500,
        cpus=2,
        memory_mib=512,
        linux_args=("hugepagesz=16M", "hugepages=8"),
    ),
)
