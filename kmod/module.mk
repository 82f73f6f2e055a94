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
#   make O=…        into another folder than build/ with this folder's path
#
# The sources stay clean: kbuild takes O for the module's folder (M) and this
# one for where its sources are (src), also what a Kbuild calls $(src).

# A build that fails must fail here, whatever filters its output.
SHELL		:= /bin/bash
.SHELLFLAGS	:= -o pipefail -c

root		:= $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
part		:= $(CURDIR:$(root)/%=%)
O		?= $(root)/build/$(part)
KERNEL		?= $(lastword $(shell ls -d /lib/modules/6.1.0-*-amd64/build 2>/dev/null | \
			sort -V | cut -d/ -f4))
# O means something else to kbuild, so it must not inherit ours.
MAKEOVERRIDES	:= $(filter-out O=%,$(MAKEOVERRIDES))
KBUILD		= $(MAKE) -s --no-print-directory -C /lib/modules/$(KERNEL)/build

.PHONY: all sparse clean needs-headers
# The plus passes the job server: make does not see that $(KBUILD) is a make.
all: needs-headers
	@mkdir -p $(O)
	@printf '  %-7s %s for %s\n' KBUILD $(part) $(KERNEL)
	+@$(KBUILD) M=$(abspath $(O)) src=$(CURDIR) modules 2>&1 | \
		{ grep -v '^Skipping BTF generation' || true; }

# A build of its own: sparse sees only what is compiled again. Its complaints
# about the kernel's own headers are not ours.
sparse: needs-headers
	@rm -rf $(O)/sparse
	@mkdir -p $(O)/sparse
	@printf '  %-7s %s\n' SPARSE $(part)
	+@$(KBUILD) M=$(abspath $(O))/sparse src=$(CURDIR) C=2 modules > $(O)/sparse.log 2>&1 || \
		{ cat $(O)/sparse.log; exit 1; }
	@! grep -E '^$(CURDIR)/.*(warning|error):' $(O)/sparse.log

needs-headers:
ifeq ($(KERNEL),)
	$(error no headers of a Debian 6.1 kernel: install Debian package linux-headers-amd64)
endif

clean:
	@rm -rf $(O)
