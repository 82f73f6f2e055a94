# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# trapless. On a fresh Debian 12, each of the first three does all its set-up:
#
#   make demo        what it does for you, in one table
#   make check       every test
#   make check-fast  linters and unit tests only, no machine is booted
#
#   make check-long  experiments and machine tests that take minutes
#   make             build the payload and the modules
#   make lint        linters only
#   make clean       remove what was built (.venv stays)

# For kbuild, unless whoever calls has said how many.
jobs		:= $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
PYTEST		= .venv/bin/python -m pytest
C_SOURCES	= $(wildcard dirty/abi/*.h dirty/module/*.[ch] dirty/tests/module/*.c dirty/tests/host/*.[ch] \
			lab/trapless_lab/plugins/*.[ch] \
			dirty/capi/include/*.h dirty/capi/examples/*.c \
			dirty/capi/tests/c/*.[ch] dirty/shim/tests/c/*.c \
			power/kvm/*.[chS] power/driver/*.[chS] \
			power/guest/*.[ch] power/guest/small/*.[ch] \
			power/tests/guest/*.[ch] power/tests/module/*.[ch] \
			power/tests/translate/*.[ch])
PYTHON_SOURCES	= conftest.py lab pagetable dirty power packaging

.PHONY: all setup setup-long build power demo check check-long check-fast lint host-tests dirty-tests \
	power-tests clean
.NOTPARALLEL:

all: setup build

setup:
	@scripts/setup

setup-long:
	@scripts/setup long

build:
	@$(MAKE) --no-print-directory $(jobs) -C pagetable
	@echo "build: the guest's module for dirty pages"
	@$(MAKE) --no-print-directory $(jobs) -C dirty/module
	@echo "build: libdirty and the trapless tool"
	@$(MAKE) --no-print-directory -C dirty

# Apart from the rest, for who needs none of it: a kernel is compiled, minutes the first time.
power: setup
	@echo "build: the kernel, the VMM and the workloads for Power"
	@$(MAKE) --no-print-directory -C power/kernel
	@$(MAKE) --no-print-directory -C power/vmm
	@$(MAKE) --no-print-directory -C power/guest
	@$(MAKE) --no-print-directory -C power/tests/guest
	@$(MAKE) --no-print-directory -C power/tests/module

demo: all power
	@.venv/bin/trapless-lab demo

# What needs no machine in two halves: each leaves a processor idle at times. The
# summary of the last command is what is read: a test runner's own.
check: all power
	@failed=; $(MAKE) --no-print-directory lint host-tests power-tests & half=$$!; \
	trap 'kill $$half; exit 130' INT TERM; \
	$(MAKE) --no-print-directory dirty-tests || failed=dirty-tests; \
	wait $$half || failed="lint, host-tests or power-tests$${failed:+, $$failed}"; \
	[ -z "$$failed" ] || { echo "check: failed: $$failed" >&2; exit 1; }
	@echo "check: all tests, the machines' too, two at a time"
	@$(PYTEST) -n 2 -m "not long" dirty lab pagetable power packaging

check-long: setup-long all power
	@echo "check-long: what takes minutes, one at a time"
	@$(PYTEST) -m long lab dirty pagetable power

check-fast: all lint host-tests
	@echo "check-fast: unit tests"
	@$(MAKE) --no-print-directory -C dirty check-fast
	@$(PYTEST) -n 2 -m "not machine" lab pagetable dirty power packaging

lint:
	@echo "lint: ruff, mypy"
	@.venv/bin/ruff check $(PYTHON_SOURCES)
	@.venv/bin/ruff format --check $(PYTHON_SOURCES)
	@.venv/bin/mypy
	@echo "lint: checkpatch, sparse"
	@report=$$(scripts/checkpatch $(C_SOURCES)); status=$$?; \
	echo "$$report" | grep -v ' 0 errors, 0 warnings'; exit $$status
	@$(MAKE) --no-print-directory -C pagetable lint-c
	@$(MAKE) --no-print-directory -C dirty/module sparse
	@echo "lint: rustfmt, clippy"
	@$(MAKE) --no-print-directory -C dirty lint
	@$(MAKE) --no-print-directory -C power/vmm lint

host-tests:
	@$(MAKE) --no-print-directory -C pagetable check-host
	@$(MAKE) --no-print-directory -C dirty/tests/host check

dirty-tests:
	@echo "dirty: back ends against memory, the C interface, the shim, the tool"
	@$(MAKE) --no-print-directory -C dirty check

power-tests: power
	@echo "power: the VMM, and translations against binutils and qemu-ppc"
	@$(MAKE) --no-print-directory -C power/kernel sparse
	@$(MAKE) --no-print-directory -C power/tests/module sparse
	@$(MAKE) --no-print-directory -C power/vmm check
	@$(MAKE) --no-print-directory -C power/tests/translate check

clean:
	rm -rf build results
