# SPDX-License-Identifier: GPL-2.0-only
# Which release of Debian the host is: 12 unless it says so.
debian		:= $(if $(filter debian-13,$(shell . /etc/os-release 2>/dev/null && echo $$ID-$$VERSION_ID)),13,12)
# The names of the releases of the kernel that the host has installed, as a file name pattern.
INSTALLED	:= $(if $(filter 13,$(debian)),6.12.*+deb13-amd64,6.1.0-*-amd64)
# The kernels of other series than the host's (scripts/fetch-linux) on which modules are
# tested: by make check, and by make check-long. BRIEF_KERNELS are those of the latter for
# which make check builds and boots the product as well, without any mistakes.
KERNELS		:= $(if $(filter 12,$(debian)),6.12-deb13)
LONG_KERNELS	:= 6.12-deb12
BRIEF_KERNELS	:= $(if $(filter 12,$(debian)),$(LONG_KERNELS))
