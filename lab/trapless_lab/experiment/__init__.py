# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Experiments, their results, and how these are shown."""
