# SPDX-License-Identifier: GPL-2.0-only
# The rules of every folder that is a kernel module, or a set of them. With a
# Kbuild beside it that names the objects, a Makefile is no more than:
#
#   include ../../kmod/module.mk
#
#   make            build the modules of this folder
#   make sparse     static analysis; fails at any finding in our own files
#   make clean
#   make KERNEL=…   for another kernel release than the newest with headers
#   make LINUX=…    for a kernel of another series, which scripts/fetch-linux fetches
#   make O=…        into another folder than build/ with this folder's path
#
# The sources stay clean: the folder O has links to them, and is the module's (M) to
# kbuild. Later kbuilds cannot be told another place for the sources.

# A build that fails must fail here, whatever filters its output.
SHELL		:= /bin/bash
.SHELLFLAGS	:= -o pipefail -c

root		:= $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
part		:= $(CURDIR:$(root)/%=%)
include $(root)/kmod/kernels.mk
LINUX		?=
fetched		?= $(if $(LINUX),$(root)/build/linux/$(LINUX))
O		?= $(root)/build/$(if $(LINUX),modules/$(LINUX)/)$(part)
KERNEL		?= $(lastword $(shell ls -d /lib/modules/$(INSTALLED)/build 2>/dev/null | \
			sort -V | cut -d/ -f4))
# O means something else to kbuild, so it must not inherit ours.
MAKEOVERRIDES	:= $(filter-out O=%,$(MAKEOVERRIDES))
HEADERS		= $(or $(fetched),/lib/modules/$(KERNEL))/build
KBUILD		= $(MAKE) -s --no-print-directory -C $(HEADERS) $(if $(LINUX),$$(cat $(fetched)/options))
link		= mkdir -p $(1) && ln -sf $(CURDIR)/Kbuild $(wildcard $(CURDIR)/*.[chS]) $(1)

.PHONY: all sparse clean needs-headers
# The plus passes the job server: make does not see that $(KBUILD) is a make.
all: needs-headers
	@$(call link,$(abspath $(O)))
	@printf '  %-7s %s for %s\n' KBUILD $(part) $(or $(LINUX),$(KERNEL))
	+@$(KBUILD) M=$(abspath $(O)) modules 2>&1 | \
		{ grep -v '^Skipping BTF generation' || true; }

# A build of its own: sparse sees only what is compiled again. Its complaints
# about the kernel's own headers are not ours.
sparse: needs-headers
	@rm -rf $(O)/sparse
	@$(call link,$(abspath $(O))/sparse)
	@printf '  %-7s %s\n' SPARSE $(part)
	+@$(KBUILD) M=$(abspath $(O))/sparse C=2 modules > $(O)/sparse.log 2>&1 || \
		{ cat $(O)/sparse.log; exit 1; }
	@! grep -E '^$(abspath $(O))/sparse/.*(warning|error):' $(O)/sparse.log

needs-headers:
ifneq ($(LINUX),)
	@[ -e $(fetched)/versions ] || $(root)/scripts/fetch-linux $(LINUX) $(fetched)
else ifeq ($(KERNEL),)
	$(error no headers of a kernel $(INSTALLED): install Debian package linux-headers-amd64)
endif

clean:
	@rm -rf $(O)
