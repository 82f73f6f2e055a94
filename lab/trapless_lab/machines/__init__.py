# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Machines as data, their boot, and the records of a run."""
