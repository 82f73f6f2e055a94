# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The paths of the project's build products, and of those of its sources that the lab compiles itself.

Invariant: nothing here builds them; a missing one is an error that says how to make it. No other module of
the lab contains their paths.
"""

import os
from pathlib import Path

from .errors import LabError
from .releases import INSTALLED

PACKAGE = Path(__file__).resolve().parent
_REPOSITORY = PACKAGE.parents[1]  # in a checkout; not in an installed package

# Links in a checkout, copies in an installed package.
DIRTY_ABI = PACKAGE / "products" / "dirty_abi"
"""The headers of dirty's interfaces."""

POLICY = PACKAGE / "products" / "pool"
"""The folder of the pool's policy.c and policy.h."""


def build_dir() -> Path:
    """Return the build tree: $TRAPLESS_BUILD, or build/ of the repository that contains this package."""
    override = os.environ.get("TRAPLESS_BUILD")
    return Path(override) if override else _REPOSITORY / "build"


def repository() -> Path:
    """Return the checkout that contains this package."""
    if not (_REPOSITORY / "docs" / "papers.md").exists():
        raise LabError(f"{_REPOSITORY} is no checkout of trapless; run this in one")
    return _REPOSITORY


def tests(system: str) -> Path:
    """Return the folder of a system's tests, which exists only in a checkout."""
    return _REPOSITORY / system / "tests"


def payload(system: str, name: str, xen: str = "") -> Path:
    """Return a hypervisor live-patch payload: for the installed Xen, or for that of ``fetched_xen``."""
    folder = f"{xen}-payload" if xen else "xen"
    return _built(build_dir() / system / folder / f"{name}.livepatch", f"make -C {system} {xen}".rstrip())


def fetched_xen(name: str) -> Path:
    """Return a folder of unpacked packages of another release's Xen, as scripts/fetch-xen makes it."""
    return _built(build_dir() / "pagetable" / name, f"make -C pagetable {name}")


def module(system: str, part: str, name: str, linux: str = INSTALLED) -> Path:
    """Return a kernel module; ``part`` is the system's folder that it is built from, ``linux`` for which."""
    how = f"make -C {system}{' mutants' if part.startswith('tests') else ''}"
    if linux == INSTALLED:
        return _built(build_dir() / system / part / f"{name}.ko", how)
    how = f"make -C {system}/{part} LINUX={linux}"
    return _built(build_dir() / "modules" / linux / system / part / f"{name}.ko", how)


def linux(name: str, file: str) -> Path:
    """Return a file or folder of a kernel of another series, as scripts/fetch-linux unpacks it."""
    return _built(build_dir() / "linux" / name / file, f"scripts/fetch-linux {name} build/linux/{name}")


def linux_variant(name: str) -> Path:
    """Return a small kernel that pagetable/linux-source/build makes: stock, patched, or with a mistake."""
    return _built(
        build_dir() / "pagetable" / "linux-source" / name / "vmlinux", "make -C pagetable linux-source"
    )


def own_xen(variant: str) -> Path:
    """Return the folder of a hypervisor that pagetable/tests/own-xen/build makes: image, symbols, config."""
    image = build_dir() / "pagetable" / "own-xen" / variant / "xen.gz"
    return _built(image, "make -C pagetable own-xen").parent


def own_xen_missing(version: str) -> str:
    """Return why no hypervisor of a version could be made: nobody had its source; nothing if one had."""
    reason = build_dir() / "pagetable" / "own-xen" / "source" / f"{version}.missing"
    return reason.read_text().strip() if reason.exists() else ""


def mutant(system: str, name: str, file: str, linux: str = INSTALLED) -> Path:
    """Return a product of a copy of a system with a deliberate mistake in it (scripts/mutant)."""
    built = build_dir() if linux == INSTALLED else build_dir() / "modules" / linux
    return _built(built / system / "mutants" / name / file, "make mutants")


def program(name: str) -> Path:
    """Return a program or a library that cargo builds."""
    return _built(build_dir() / "rust" / "release" / name, "make -C dirty")


def power(part: str, name: str) -> Path:
    """Return a build product for the Power machines: of the kernel, the VMM or the guest."""
    return _built(build_dir() / "power" / part / name, "make -C power")


def power_emulator() -> Path:
    """Return the emulator that runs on the emulated Power host, as power/guest/qemu makes it."""
    return _built(build_dir() / "power" / "emulator" / "qemu-system-ppc", "make -C power emulator")


def arm64_debian(name: str) -> Path:
    """Return a file of Debian 13's arm64 packages, as scripts/fetch-arm64 unpacks them."""
    return _built(build_dir() / "arm64" / "debian" / name, "make -C dirty/tests/arm64")


def arm64_kernel(page_kib: int) -> Path:
    """Return Debian 13's kernel for pages of this size."""
    return arm64_debian(f"vmlinuz-{page_kib}k")


def arm64_program(name: str, *, mutant: bool = False) -> Path:
    """Return a program that cargo builds for arm64; as ``mutant``, the one that can make mistakes."""
    folder = build_dir() / "arm64" / ("mutants" if mutant else "rust") / "aarch64-unknown-linux-gnu/release"
    return _built(folder / name, "make -C dirty/tests/arm64")


def _built(path: Path, how: str) -> Path:
    if not path.exists():
        raise LabError(f"{path} is not built; run {how} in the repository (or set TRAPLESS_BUILD)")
    return path
