# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The host with two processors, which race, for it has no deterministic clock.

``make -C power smp`` makes its kernels: ``smp``, and ``host`` with the mistakes that only it shows.
"""

from dataclasses import replace

from trapless_lab import artifacts
from trapless_lab.machines.machine import MACHINES, Machine

# Its huge pages are smaller than those of the host with one processor.
HUGE = "hugetlb=16M"


def host(*, mistaken: bool = False) -> Machine:
    """Return the machine with one of the two kernels."""
    made = artifacts.mutant("power", "host", "vmlinux") if mistaken else artifacts.power("smp", "vmlinux")
    return replace(MACHINES["power-kvm-smp"], kernel=made)
