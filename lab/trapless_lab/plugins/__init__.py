# SPDX-License-Identifier: Apache-2.0 OR MIT
"""QEMU plugins, which watch a machine's instructions from outside, and their output."""
