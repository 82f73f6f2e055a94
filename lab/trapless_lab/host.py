# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The stock binaries of this Debian host that go into a machine, and their versions.

Invariant: nothing is built or downloaded here, and a missing thing is named together with the Debian
package that brings it.
"""

import atexit
import functools
import gzip
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .releases import INSTALLED, INSTALLED_IMAGE

BOOT = Path("/boot")
MODULES = Path("/lib/modules")
ROOT = Path("/")

_EMULATORS = {
    "x86": ("qemu-system-x86_64", "qemu-system-x86"),
    "power": ("qemu-system-ppc", "qemu-system-ppc"),
    "arm64": ("qemu-system-aarch64", "qemu-system-arm"),
}

# The first bytes of what zstd has packed.
_ZSTD = b"\x28\xb5\x2f\xfd"

_XEN = re.compile(r"xen-(?P<version>(?P<major>\d+)\.(?P<minor>\d+))-amd64\.(?:gz|efi)")


@dataclass(frozen=True)
class Xen:
    """A hypervisor and what belongs to it, of Debian's packages: installed, or unpacked in ``root``."""

    version: str
    root: Path

    @property
    def package(self) -> str:
        """The package that the image is from; its symbols have another."""
        return f"xen-hypervisor-{self.version}-amd64"

    @property
    def image(self) -> Path:
        """The image that a multiboot loader boots."""
        return self.root / "boot" / f"xen-{self.version}-amd64.gz"

    @property
    def symbols(self) -> Path:
        """The image with its symbols, if their package is there."""
        return self.root / "usr/lib/debug/boot" / f"xen-syms-{self.version}-amd64"

    def tool(self, name: str) -> Path:
        """Find a program of its toolstack: the one on the host's path is a script that selects a version."""
        return file(self.root / "usr/lib" / f"xen-{self.version}" / "bin" / name, f"xen-utils-{self.version}")


@dataclass(frozen=True)
class Kernel:
    """A Debian kernel that modules can be built for; ``root`` contains /lib with its own modules."""

    release: str
    image: Path
    root: Path = Path("/")


def _missing(what: object, package: str) -> LabError:
    return LabError(f"{what} is missing; install the Debian package {package}")


def tool(name: str, package: str) -> Path:
    """Find a program; modprobe and its like are outside a user's PATH."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise _missing(name, package)
    return Path(found)


def file(path: Path, package: str) -> Path:
    """Find a file of a package."""
    if not path.exists():
        raise _missing(path, package)
    return path


def _other_qemu() -> Path | None:
    """Return the folder of unpacked packages that $TRAPLESS_QEMU names, as scripts/fetch-qemu makes it."""
    folder = os.environ.get("TRAPLESS_QEMU")
    return Path(folder) if folder else None


def qemu(architecture: str = "x86") -> Path:
    """Find QEMU's system emulator: the installed one, or that of $TRAPLESS_QEMU."""
    name, package = _EMULATORS[architecture]
    if (other := _other_qemu()) is None:
        return tool(name, package)
    path = other / "usr/bin" / name
    if not path.exists():
        raise LabError(f"{path} is missing; $TRAPLESS_QEMU has to be a folder of unpacked packages")
    return path


def qemu_data() -> Path | None:
    """Return the folder with the emulator's own firmware, if it is not where an installed one looks."""
    return other / "usr/share/qemu" if (other := _other_qemu()) else None


@functools.cache
def qemu_version(program: Path) -> tuple[int, int]:
    """Return an emulator's version: two numbers."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    if not (found := re.search(r"version (\d+)\.(\d+)", said)):
        raise LabError(f"{program} does not say which version it is: {said!r}")
    return int(found[1]), int(found[2])


def busybox() -> Path:
    """Find a busybox that runs without shared libraries."""
    path = tool("busybox", "busybox-static")
    if shared_libraries(path):
        raise LabError(f"{path} is dynamically linked; install the Debian package busybox-static")
    return path


def kernel(boot: Path = BOOT, modules: Path = MODULES) -> Kernel:
    """Return the newest kernel whose headers are installed: the modules under test were built for it."""
    found = [match for path in boot.glob("vmlinuz-*") if (match := INSTALLED_IMAGE.fullmatch(path.name))]
    if not found:
        raise _missing(f"a kernel {INSTALLED} in {boot}", "linux-image-amd64")
    usable = [match for match in found if (modules / match["release"] / "build").exists()]
    if not usable:
        raise _missing(f"{modules}/{found[0]['release']}/build", f"linux-headers-{found[0]['release']}")
    newest = max(usable, key=lambda match: int(match["abi"]))
    return Kernel(newest["release"], boot / newest[0])


def xen_of(image: Path | None, root: Path = ROOT) -> Xen:
    """Return the Xen of the release that an image's file name says, as of several after an upgrade of the
    distribution; the newest if it says none.
    """
    named = _XEN.fullmatch(image.name) if image else None
    return Xen(named["version"], root) if named else xen(root)


def xen(root: Path = ROOT) -> Xen:
    """Return the newest Xen of this host, or that of packages that are unpacked in a folder."""
    boot = root / "boot"
    found = [match for path in boot.glob("xen-*.gz") if (match := _XEN.fullmatch(path.name))]
    if not found:
        raise _missing(f"a hypervisor {boot}/xen-*-amd64.gz", "xen-system-amd64")
    newest = max(found, key=lambda match: (int(match["major"]), int(match["minor"])))
    return Xen(newest["version"], root)


def unpack_xen(directory: Path, image: Path) -> Path:
    """Write the hypervisor, uncompressed as QEMU's multiboot loader wants it, into ``directory``."""
    target = directory / "xen"
    try:
        target.write_bytes(gzip.decompress(image.read_bytes()))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LabError(f"{image} is not a gzip file, as /boot/xen-*.gz are: {error}") from error
    return target


def unpack_kernel(image: Path) -> bytes:
    """Return the ELF image inside a kernel, the very bytes that run: unpacking takes an emulated processor
    4 seconds, half of Linux' boot, and the toolstack in one 15.
    """
    packed = image.read_bytes()
    sectors, offset, length = packed[0x1F1], *struct.unpack_from("<II", packed, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = packed[start : start + length]
    try:
        kernel = _unpack_zstd(payload) if payload.startswith(_ZSTD) else _unpack_xz(payload)
    except (lzma.LZMAError, subprocess.CalledProcessError) as error:
        raise LabError(f"{image} is not packed with xz or zstd as Debian's kernels are: {error}") from error
    if not kernel.startswith(b"\x7fELF"):
        raise LabError(f"{image} has no ELF image inside")
    return kernel


def _unpack_xz(packed: bytes) -> bytes:
    return lzma.LZMADecompressor().decompress(packed)


def _unpack_zstd(packed: bytes) -> bytes:
    # The last word is the size, for the kernel's own unpacker.
    command: list[str | Path] = [tool("zstd", "zstd"), "-dcq"]
    return subprocess.run(command, input=packed[:-4], stdout=subprocess.PIPE, check=True).stdout


def module_content(path: Path) -> bytes:
    """Return a module as it is loaded: later kernels than 6.1 have theirs packed with xz."""
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def module_release(path: Path) -> str:
    """Return the release of the kernel that a module was built for."""
    command: list[str | Path] = [tool("modinfo", "kmod"), "-F", "vermagic", path]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.partition(" ")[0]


@functools.cache
def vmlinux(image: Path) -> Path:
    """Return a file with the ELF image inside a kernel, which lives as long as this process."""
    directory = tempfile.TemporaryDirectory(prefix="trapless-kernel-")
    atexit.register(directory.cleanup)
    unpacked = Path(directory.name) / image.name.replace("vmlinuz", "vmlinux")
    unpacked.write_bytes(unpack_kernel(image))
    return unpacked


def shared_libraries(program: Path, root: Path = ROOT, beside: Path | None = None) -> list[Path]:
    """List the shared libraries and the loader of a program; none for a static one.

    Those of packages that are unpacked in ``root``, or of the folder ``beside``, come before the host's. With
    a loader of its own, such a root has to have all of them.
    """
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    own = beside or (None if root == ROOT else root / "usr/lib/x86_64-linux-gnu")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(own)} if own else os.environ
    command: list[str | Path] = [tool("ldd", "libc-bin"), program]
    if root != ROOT and loader.exists():
        command = [loader, "--inhibit-cache", "--list", program]
    listed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if "not found" in (said := listed.stdout + listed.stderr):
        raise LabError(f"{program} misses shared libraries:\n{said}")
    return [Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed.stdout, re.MULTILINE)]


def thread_library(root: Path = ROOT) -> Path:
    """Find the library that libc loads when a thread is cancelled; programs are not linked against it."""
    name = "libgcc_s.so.1"
    if root != ROOT:
        return file(root / "usr/lib/x86_64-linux-gnu" / name, "libgcc-s1")
    beside = [path.with_name(name) for path in shared_libraries(Path(sys.executable))]
    found = [path for path in beside if path.exists()]
    if not found:
        raise _missing(name, "libgcc-s1")
    return found[0]


def module_files(kernel: Kernel, name: str) -> list[Path]:
    """List a module and all it needs, in load order; none for a built-in one."""
    shown = subprocess.run(
        [tool("modprobe", "kmod"), "-d", kernel.root, "-S", kernel.release, "--show-depends", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise LabError(f"kernel {kernel.release} has no module {name}: {shown.stderr.strip()}")
    # Below the root of this host it prints two slashes, which Path keeps apart from one.
    return [Path(path) for path in re.findall(r"^insmod /*(/\S+)", shown.stdout, re.MULTILINE)]


def _package_version(package: str) -> str:
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False
    )
    return shown.stdout or "not packaged"


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of further packages that a measurement depends on."""
    return {package: _package_version(package) for package in packages}


def _qemu_package() -> str:
    if (other := _other_qemu()) is None:
        return _package_version("qemu-system-x86")
    listed = dict(line.split() for line in (other / "versions").read_text().splitlines())
    return listed["qemu-system-x86"]


def versions() -> dict[str, str]:
    """Return the versions that a reader needs to boot the same machines."""
    release = kernel().release
    return {
        "qemu": _qemu_package(),
        "xen": _package_version(xen().package),
        "linux": f"{release} ({_package_version(f'linux-image-{release}')})",
        "busybox": _package_version("busybox-static"),
    }
