# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The experiments, one file each.

Invariant: a file here that uses the ``experiment`` decorator is known to the command line; nothing else
has to be edited.
"""
