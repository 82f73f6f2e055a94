# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# trapless as a whole; make help lists the targets. Each system can be built and
# tested alone, with only what it needs: make -C pagetable, make -C dirty, make -C
# power, and check of each.

include kmod/place.mk

SHELL		:= /bin/bash
sub		= $(MAKE) --no-print-directory
# For kbuild, unless whoever calls has said how many.
jobs		:= $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
PYTEST		= .venv/bin/python -m pytest
TESTED		= lab $(systems) packaging scripts
UNIT_TESTS	= $(PYTEST) -q -m "not machine and not long$(if $(unless), and not $(unless))" $(workers) $(TESTED)
HOURS		?= 8
systems		:= pagetable dirty power
# What no system's own lint looks at: dirty's is for any Linux.
C_SOURCES	= $(wildcard lab/trapless_lab/plugins/*.[ch] lab/tests/plugins/*.c dirty/abi/*.h dirty/module/*.[ch] \
			dirty/tests/module/*.c dirty/tests/host/*.[ch] dirty/capi/include/*.h \
			dirty/capi/examples/*.c dirty/capi/tests/c/*.[ch] dirty/shim/tests/c/*.c \
			dirty/oracle/include/*.h dirty/oracle/plugins/*.[ch] dirty/oracle/tests/plugins/*.c)

.PHONY: help all setup $(systems) modules mutants demo report check check-long check-fast \
	pagetable-mutants dirty-mutants arm64 lint host-tests power-tests unit-tests dirty-unit-tests dirty-tests soak clean
.NOTPARALLEL:

all: pagetable dirty		## build what is installed: payload, modules, libraries, command
help:				## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
	@echo "  make -C SYSTEM        one of $(systems) alone; its targets are in its Makefile"

demo:				## install what is missing, build, and show in one table what it does
	@scripts/setup || scripts/setup lab
	+@failed=; built=; for system in $(systems); do \
		if $(sub) $$system least=1; then built="$$built $$system"; else failed="$$failed $$system"; fi; \
	done; \
	.venv/bin/trapless-lab demo $$built || failed="$$failed demo"; \
	[ -z "$$failed" ] || { echo "demo: failed:$$failed; the rest is as shown" >&2; exit 1; }

pagetable:			## Xen's payload and the guest's two modules
	@scripts/setup lab pagetable
	@echo "build: pagetable: payload and modules"
	@$(sub) $(jobs) -C pagetable

dirty:				## libdirty, the command trapless, and the module for Debian's kernel
	@scripts/setup dirty
	@echo "build: dirty: libraries, command, module"
	@$(sub) -C dirty CARGO=cargo
	@$(sub) $(jobs) -C dirty/module

# least=1: what the demonstration and make check need.
power:				## kernels (minutes the first time), VMM and guests for the e500v2 board
	@scripts/setup lab power
	@echo "build: power: kernel, VMM, guests"
	@$(sub) -C power $(if $(least),kernel vmm guest)

setup:
	@scripts/setup --tests
	@$(sub) $(systems) least=1

mutants: pagetable-mutants dirty-mutants arm64	## what only tests run, and copies with deliberate mistakes, which they must catch
	@$(sub) -C power tests

pagetable-mutants:
	@echo "build: pagetable: modules with deliberate mistakes"
	@$(sub) $(jobs) -C pagetable mutants debian13

dirty-mutants:
	@echo "build: dirty: tests' modules, copies with deliberate mistakes"
	@$(sub) -C dirty CARGO=cargo mutants
	@$(sub) $(jobs) -C dirty/tests/mutants

arm64:
	@echo "build: programs for arm64 machines"
	@$(sub) -C dirty/tests/arm64

# Two commands side by side, for each leaves a processor idle at times. $(1), $(2):
# their targets, which must not build the same thing.
beside = failed=; $(sub) $(1) & lane=$$!; trap 'kill $$lane; exit 130' INT TERM; \
	$(sub) $(2) || failed='$(2)'; \
	wait $$lane || failed='$(1)'"$${failed:+, $$failed}"; \
	[ -z "$$failed" ] || { echo "check: failed: one of $$failed" >&2; exit 1; }

# The summary of the last command is what is read: a test runner's own.
check:				## install what is missing, build, run every test but the long ones
	@scripts/setup --tests
	@$(call beside,power power-tests arm64 least=1,pagetable pagetable-mutants dirty least=1)
	@$(call beside,lint host-tests unit-tests workers="-n 2" least=1,dirty-mutants dirty-tests least=1)
	@echo "check: the tests that boot machines, two at a time"
	@$(PYTEST) -n 2 -m "machine and not long" $(TESTED)

check-fast: setup		## linters and unit tests; no machine is booted
	@$(call beside,lint host-tests dirty-unit-tests least=1,unit-tests workers="-n 2" unless=not_fast)

check-long: 			## what check leaves out: experiments, machine tests, most deliberate mistakes
	@scripts/setup --long
	@$(sub) $(systems) mutants
	@$(sub) $(jobs) -C dirty/tests/mutants long
	@$(sub) $(jobs) -C pagetable later-kernels debian13-efi next-debian own-xen linux-source
	@$(sub) -C power smp emulator
	@$(sub) host-tests
	@$(sub) -C power mutants
	@$(sub) -C dirty check-long
	@$(PYTEST) -m long $(TESTED)

lint:				## ruff, mypy, checkpatch, sparse, rustfmt, clippy
	@echo "lint: ruff, mypy"
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@echo "lint: checkpatch, sparse, rustfmt, clippy"
	@report=$$(scripts/checkpatch $(C_SOURCES)); status=$$?; \
	echo "$$report" | grep -v ' 0 errors, 0 warnings'; exit $$status
	@for part in dirty/module dirty/tests/module; do $(sub) -C $$part sparse || exit 1; done
	@for system in $(systems); do $(sub) -C $$system lint || exit 1; done

host-tests:			## C that needs no kernel, over a model, under sanitizers
	@$(sub) $(jobs) -C pagetable check-host
	@$(sub) -C dirty/tests/host check

unit-tests:
	@echo "unit tests of the lab, the provers, packaging and scripts"
	@$(UNIT_TESTS)

dirty-unit-tests:
	@echo "dirty: unit tests"
	@$(sub) -C dirty check-fast

dirty-tests:
	@echo "dirty: back ends against memory, the C interface, the shim, the command"
	@$(sub) -C dirty check

power-tests:
	@echo "power: the VMM, and translations against binutils and qemu-ppc"
	@$(sub) -C power tests
	@$(sub) -C power check-host

soak: setup mutants		## random tests on new seeds for HOURS=n in all; goes on where it was stopped
	@.venv/bin/python scripts/soak.py --hours $(HOURS)

report:				## every table and figure of the papers, in docs/report; QUICK=1; goes on where it was stopped
	@scripts/setup --long
	@$(sub) $(systems) least=1
	@scripts/fetch-linux 6.12-deb13 build/linux/6.12-deb13
	@.venv/bin/trapless-lab report $(if $(QUICK),--quick) -o docs/report --tables docs/results.md

clean:				## remove what was built (.venv stays)
	rm -rf build results
