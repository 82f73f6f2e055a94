# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What of a guest's free memory ``MemFree`` leaves out: the pages that each CPU keeps for itself.

Invariant: both together are what is free. From Linux 6.7 on some 17 MiB go from one to the other and back,
with what a CPU did last, so that neither can be compared alone.
"""

HOARDED = 'awk \'$1 == "count:" {pages += $2} END {print "hoarded", 4 * pages}\' /proc/zoneinfo'
"""Shell command that prints it in KiB, as "hoarded N"."""
