# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What differs between the kernels that a PC of the lab boots, and is known by no other file: data.

Invariant: whoever asks for a kernel's name to decide something adds a set here in its place.
"""

import platform
import re
from dataclasses import dataclass
from typing import Literal

Linux = Literal["6.1", "6.12-deb12", "6.12-deb13"]
"""Debian 12's own; that of its backports; Debian 13's."""


@dataclass(frozen=True)
class Release:
    """Of the host: its kernel and the files of that in /boot, and the pair of its own Xen and kernel."""

    linux: Linux
    image: re.Pattern[str]
    pair: str


# Only the plain flavour, as "-cloud" and "-rt" differ where the modules rely on them.
_RELEASES = {
    "12": Release("6.1", re.compile(r"vmlinuz-(?P<release>6\.1\.0-(?P<abi>\d+)-amd64)"), "debian12"),
    "13": Release(
        "6.12-deb13", re.compile(r"vmlinuz-(?P<release>6\.12\.(?P<abi>\d+)\+deb13-amd64)"), "debian13"
    ),
}


def of_host() -> Release:
    """Return the host's release; a host that is none of them lacks 12's packages, which errors then name."""
    try:
        found = platform.freedesktop_os_release()
    except OSError:
        found = {}
    version = found.get("VERSION_ID", "") if found.get("ID") == "debian" else ""
    return _RELEASES.get(version, _RELEASES["12"])


_HOST = of_host()

INSTALLED: Linux = _HOST.linux
"""The one that is installed on the host. scripts/fetch-linux fetches the others."""

INSTALLED_IMAGE = _HOST.image
"""Its files in /boot."""

INSTALLED_PAIR = _HOST.pair
"""What machines boot unless another pair is asked for."""

SETTLING: frozenset[Linux] = frozenset({"6.12-deb12", "6.12-deb13"})
"""Those that examine certificates for some time after the boot, which would be in every figure."""

ASYNC_WRITE_PROTECTION: frozenset[Linux] = frozenset({"6.12-deb12", "6.12-deb13"})
"""Those whose userfaultfd has it, with PAGEMAP_SCAN: since Linux 6.7."""

FAULT_AROUND_BY_FOLIOS: frozenset[Linux] = frozenset({"6.12-deb12", "6.12-deb13"})
"""Those that look for a file's pages around a fault folio by folio: since Linux 6.4."""

LATE_TIMERS: frozenset[Linux] = frozenset({"6.12-deb12", "6.12-deb13"})
"""Those seen to panic beside other machines, when an emulated timer was late for their check of it."""
