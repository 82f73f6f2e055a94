# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Profiles of a machine's instructions, by symbol."""
