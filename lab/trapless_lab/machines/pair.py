# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A Xen and a Linux that are booted together, of the releases of Debian's that are supported.

Invariant: whatever goes into a machine for a pair is of that pair: hypervisor, toolstack and kernel, and the
payload and the modules that were built for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .. import artifacts, host, kernels
from ..releases import INSTALLED, INSTALLED_PAIR, SETTLING, Linux
from .machine import Machine
from .script import Step

_SETTLE = Step("settle", "sleep 20")


@dataclass(frozen=True)
class Pair:
    """``xen`` is the name of another release's, as artifacts.py knows it; without one, the host's."""

    name: str
    linux: Linux = INSTALLED
    xen: str = ""

    def machine(self, machine: Machine) -> Machine:
        """Return the same machine with this pair's kernel, and with its Xen where there is one."""
        booted = machine.with_linux(self.linux)
        return booted.with_xen(self.xen_root) if self.xen and machine.xen else booted

    @property
    def xen_root(self) -> Path:
        """The folder that its Xen and its toolstack are in, with their packages' paths."""
        return artifacts.fetched_xen(self.xen) if self.xen else host.ROOT

    @property
    def settling(self) -> Sequence[Step]:
        """The steps before anything is measured."""
        return (_SETTLE,) if self.linux in SETTLING else ()

    def payload(self, system: str, name: str) -> Path:
        """Return a live-patch payload for its Xen."""
        return artifacts.payload(system, name, self.xen)

    def module(self, system: str, part: str, name: str) -> Path:
        """Return a module for its kernel."""
        return artifacts.module(system, part, name, self.linux)

    def versions(self) -> dict[str, str]:
        """Return its name, and the versions of what it has in place of the host's own."""
        found = {"pair": self.name}
        if self.linux != INSTALLED:
            release = kernels.kernel(self.linux).release
            versions = _packages(artifacts.linux(self.linux, "versions"))
            found["linux"] = f"{release} ({versions[f'linux-image-{release}']})"
        if self.xen:
            root = artifacts.fetched_xen(self.xen)
            found["xen"] = _packages(root / "versions")[host.xen(root).package]
        return found


def _packages(file: Path) -> dict[str, str]:
    """Return package -> version, as what fetched them wrote it down."""
    return dict(line.split() for line in file.read_text().splitlines())


# With Debian 13's packages installed, Debian 12's are not fetched.
_OF_HOST = {
    "debian12": (
        Pair("debian12"),
        Pair("debian12-backports", "6.12-deb12"),
        Pair("debian13", "6.12-deb13", "debian13"),
    ),
    "debian13": (Pair("debian13"),),
}

PAIRS: Mapping[str, Pair] = MappingProxyType({pair.name: pair for pair in _OF_HOST[INSTALLED_PAIR]})

DEFAULT = PAIRS[INSTALLED_PAIR]
"""What the host itself has installed."""
