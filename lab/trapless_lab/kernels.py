# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The stock kernels that a PC can boot, by name: the host's own series, and what scripts/fetch-linux fetches.

Invariant: a kernel, its modules and the modules that are built for it belong together: all are found by the
same name.
"""

from . import artifacts, host
from .releases import INSTALLED, Linux


def kernel(linux: Linux) -> host.Kernel:
    """Return a kernel: an installed one, or one unpacked into the build tree."""
    if linux == INSTALLED:
        return host.kernel()
    release = artifacts.linux(linux, "release").read_text().strip()
    return host.Kernel(release, artifacts.linux(linux, "vmlinuz"), artifacts.linux(linux, "lib").parent)
