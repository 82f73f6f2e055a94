# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Machines as data, what boots them, and what a run left behind."""
