# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The one exception a user of the lab may see.

Invariant: its text says what is wrong and what to do; the command line prints it without a traceback.
"""


class LabError(Exception):
    """Something outside the lab's own code is missing, wrong or too slow."""
