# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Proof that layout.h describes the installed hypervisor, item by item."""
