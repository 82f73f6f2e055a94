# SPDX-License-Identifier: Apache-2.0 OR MIT
# For every makefile by which kbuild is called: where it would fail is said before anything is built.

ifneq ($(word 2,$(CURDIR)),)
$(error kbuild builds nothing in a path with a space, which this one has: $(CURDIR))
endif
