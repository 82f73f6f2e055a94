# SPDX-License-Identifier: GPL-2.0-only
# The kernels of other series than the host's (scripts/fetch-linux) on which modules are
# tested: by make check, and by make check-long.
KERNELS		:= 6.12-deb13
LONG_KERNELS	:= 6.12-deb12
