# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Dirty-page tracking: the experiments on it."""
