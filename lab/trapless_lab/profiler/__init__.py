# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where a machine's instructions went, by name."""
