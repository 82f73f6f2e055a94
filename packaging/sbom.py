# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes what the Debian packages are made of: a software bill of materials, CycloneDX in JSON.

    python packaging/sbom.py FILE

For each package, the crates that are linked into its programs and libraries, with versions, licences and the
checksums that Cargo.lock pins. Kernel modules, payload and Python package contain no code but ours; libc and
what else Debian links is in the package's own Depends. The same sources give the same file.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"
# The crates whose code is in a package; a package without is its own sources alone.
CRATES = {
    "libdirty1": ("libdirty-capi",),
    "libdirty-dev": ("libdirty-capi",),
    "libdirty-tools": ("dirty-oracle", "libdirty-softdirty"),
    "python3-trapless-dirty": (),
    "trapless": ("trapless",),
    "trapless-dirty-dkms": (),
    "trapless-xen": (),
}


def linked(crate: str) -> Iterator[tuple[int, str, str, str]]:
    """Return what is linked into a crate, as a tree: depth, name, version and licence of each.

    cargo tree selects features as for this crate alone, which cargo metadata does not.
    """
    command = ["cargo", "tree", "--locked", "-p", crate, "-e", "no-build,no-dev,no-proc-macro", "--no-dedupe"]
    command += ["--target", TARGET, "--prefix", "depth", "-f", "|{p}|{l}"]
    text = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in text.splitlines():
        depth, package, licence = line.split("|")
        name, version = package.split()[:2]
        yield int(depth), name, version.removeprefix("v"), licence


def checksums() -> dict[tuple[str, str], str]:
    """Return the pinned SHA-256 of each crate that comes from a registry."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(of["name"], of["version"]): of["checksum"] for of in lock["package"] if "checksum" in of}


class Crates:
    """The crates of all packages, a component each."""

    def __init__(self) -> None:
        self._pinned = checksums()
        self._licences = LicenseFactory()
        self.known: dict[str, Component] = {}
        self.uses: dict[str, set[str]] = {}

    def add(self, crate: str) -> Component:
        """Add what is linked into one of ours; return it."""
        above: list[str] = []
        for depth, name, version, licence in linked(crate):
            reference = f"crate:{name}@{version}"
            self.known.setdefault(reference, self._component(reference, name, version, licence))
            self.uses.setdefault(reference, set())
            del above[depth:]
            if above:
                self.uses[above[-1]].add(reference)
            above.append(reference)
        return self.known[above[0]]

    def _component(self, reference: str, name: str, version: str, licence: str) -> Component:
        checksum = self._pinned.get((name, version))
        return Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=reference,
            purl=PackageURL("cargo", None, name, version),
            # An old way to write OR.
            licenses=[self._licences.make_from_string(licence.replace("/", " OR "))] if licence else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
        )


def bill() -> Bom:
    """Return the bill of all packages."""
    crates = Crates()
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"trapless {version} {sorted(checksums().items())}"))
    bom.metadata.component = whole = Component(
        name="trapless", version=version, type=ComponentType.APPLICATION, bom_ref="trapless"
    )
    packages = []
    for package, roots in CRATES.items():
        deb = Component(
            name=package,
            version=version,
            type=ComponentType.APPLICATION,
            bom_ref=f"deb:{package}",
            purl=PackageURL("deb", "trapless", package, version),
        )
        packages.append(deb)
        bom.components.add(deb)
        bom.register_dependency(deb, [crates.add(root) for root in roots])
    bom.register_dependency(whole, packages)
    for reference, crate in crates.known.items():
        bom.components.add(crate)
        bom.register_dependency(crate, [crates.known[of] for of in sorted(crates.uses[reference])])
    # Not when it was made: the same sources, the same file.
    bom.metadata.timestamp = None  # type: ignore[assignment]
    return bom


def main() -> None:
    """Write it."""
    if len(sys.argv) != 2:
        sys.exit("usage: sbom.py FILE")
    file = Path(sys.argv[1])
    text = JsonV1Dot6(bill()).output_as_string(indent=1)
    try:
        file.write_text(text + "\n")
    except OSError as error:
        sys.exit(f"sbom: {file}: {error.strerror}")


if __name__ == "__main__":
    main()
