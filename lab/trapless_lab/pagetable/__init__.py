# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The page-table accelerators: their parts as steps, and the experiments on them."""
