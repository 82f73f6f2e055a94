# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The host with two processors, which race, for it has no deterministic clock.

``make -C power smp`` makes its kernels: ``smp``, and ``host`` with the mistakes that only it shows.
"""

from dataclasses import replace

from trapless_lab import artifacts
from trapless_lab.machines.machine import Machine
from trapless_lab.power.experiments import two_vcpus

HUGE = two_vcpus.BACKING


def host(*, mistaken: bool = False) -> Machine:
    """Return the machine with one of the two kernels."""
    right = two_vcpus.host()
    return replace(right, kernel=artifacts.mutant("power", "host", "vmlinux")) if mistaken else right
