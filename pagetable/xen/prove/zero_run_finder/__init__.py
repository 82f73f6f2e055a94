# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Finds Xen's loops over page-table entries in its binary, and proves what zero_runs.S assumes of them."""
