# SPDX-License-Identifier: Apache-2.0 OR MIT
"""QEMU's plugins: what watches a machine's instructions from outside, and what they wrote."""
