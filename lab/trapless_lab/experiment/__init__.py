# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What an experiment is, what it found, and how that is shown."""
