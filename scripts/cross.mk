# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# A Rust toolchain for a target of whose standard library there is no build here: the
# library is compiled from its source (cargo's -Zbuild-std) by the first toolchain that
# has it: rustup's (component rust-src), or Debian's (rustc-web, cargo-web,
# rust-web-src). Only nightly compilers do so without RUSTC_BOOTSTRAP.
#
#   $(cross_cargo)         with its environment, without RUSTFLAGS of the host's builds
#   $(call need-cross)     an error that says what to do if there is no such toolchain

rustcs		:= rustc /usr/bin/rustc
library		= $(wildcard $(shell $(1) --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/Cargo.lock)
cross_rustc	:= $(firstword $(foreach rustc,$(rustcs),$(if $(call library,$(rustc)),$(rustc))))
cross_cargo	:= env -u RUSTFLAGS RUSTC=$(cross_rustc) RUSTC_BOOTSTRAP=1 \
			$(patsubst %rustc,%cargo,$(cross_rustc)) --quiet
need-cross	= $(if $(cross_rustc),,$(error no Rust toolchain here has its library's source: run scripts/setup))
