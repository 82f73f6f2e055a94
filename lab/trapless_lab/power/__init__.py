# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Power machines and the experiments on translation in place."""
