// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory apart from the program's `malloc`, straight from the kernel.
//!
//! A garbage collector stops the threads of its program by a signal, wherever they are, in the midst of `malloc` too,
//! and then collects: nothing that collect and read do may wait for a lock that one of them holds. So the library
//! has an allocator of its own; and so that none is stopped while it holds a lock of the *library*, no signal is taken
//! inside of those functions (see `call`).

use std::sync::atomic::{AtomicBool, Ordering};

#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// From now on `fork` waits until no thread is inside the allocator, which its child would find locked for ever.
pub(crate) fn guard_forks() {
    static IS_GUARDED: AtomicBool = AtomicBool::new(false);
    if !IS_GUARDED.load(Ordering::Relaxed) && !IS_GUARDED.swap(true, Ordering::Relaxed) {
        // SAFETY: registers functions that live as long as the program, once. What is allocated already may be.
        unsafe { dlmalloc::enable_alloc_after_fork() };
    }
}
