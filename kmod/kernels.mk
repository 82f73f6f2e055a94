# SPDX-License-Identifier: GPL-2.0-only
# The names of the releases of the kernel that the host has installed, as a file name pattern.
INSTALLED	:= 6.1.0-*-amd64
# The kernels of other series than the host's (scripts/fetch-linux) on which modules are
# tested: by make check, and by make check-long.
KERNELS		:= 6.12-deb13
LONG_KERNELS	:= 6.12-deb12
