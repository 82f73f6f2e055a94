# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What differs between the kernels that a PC of the lab boots, and is known by no other file: data.

Invariant: whoever asks for a kernel's name to decide something adds a set here in its place.
"""

import re
from typing import Literal

Linux = Literal["6.1", "6.12-deb12", "6.12-deb13"]
"""Debian 12's own; that of its backports; Debian 13's."""

INSTALLED: Linux = "6.1"
"""The one that is installed on the host. scripts/fetch-linux fetches the others."""

INSTALLED_IMAGE = re.compile(r"vmlinuz-(?P<release>6\.1\.0-(?P<abi>\d+)-amd64)")
"""Its files in /boot: only the plain flavour, as "-cloud" and "-rt" differ where the modules rely on them."""

SETTLING: frozenset[Linux] = frozenset({"6.12-deb12", "6.12-deb13"})
"""Those that examine certificates for some time after the boot, which would be in every figure."""

LATE_TIMERS: frozenset[Linux] = frozenset({"6.12-deb12", "6.12-deb13"})
"""Those seen to panic beside other machines, when an emulated timer was late for their check of it."""
