# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The lab of trapless: machines as data, steps run in them, and what an outside witness counted.

Invariant: nothing in here trusts a number that the measured system gives about itself where QEMU can
count it instead.
"""

__version__ = "0.2.0"
