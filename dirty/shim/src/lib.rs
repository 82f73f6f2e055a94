// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `LD_PRELOAD=libdirty-softdirty.so`: the soft-dirty interface of the kernel, answered by libdirty.
//!
//! A write of "4" to `/proc/PID/clear_refs` arms a tracker of that process, and what the program reads from
//! `/proc/PID/pagemap` carries bit 55 for the pages written since, or PAGE_IS_SOFT_DIRTY if it asks by `PAGEMAP_SCAN`.
//! Every other file, and everything else about these two, is the kernel's.
//!
//! Invariants:
//! - **Never falsely clean.** Bit 55 is left out of a present page only where a tracker of this process watches
//!   it and the kernel says that it was not written since it was armed, or where a holder says so. In every other case, a failure of the
//!   shim included, the page reads soft-dirty.
//! - **Nothing on the way of others.** A call on any other file is one look at a table and the original call:
//!   no lock, no allocation, no system call (an `open` costs one `fstat`).
//! - **Nothing of the program's.** Inside of the shim no signal handler runs, no cancellation is taken, and no
//!   memory comes from the program's allocator: a collector may have stopped all threads, one of them in `malloc`.
//!
//! `interpose` has the functions that replace the C library's, `files` knows which descriptors are ours, `answer`
//! and `scan` give the answers, under `lock`; `hold` has them from a holder, `own` from the kernel module for the program
//! itself. `criu_cache` keeps them from who does not use this library.

mod answer;
mod criu_cache;
mod files;
mod hold;
mod interpose;
mod kernel;
mod known;
mod lock;
mod own;
mod real;
mod scan;
mod settings;

/// Memory apart from the program's `malloc`, straight from the kernel.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
