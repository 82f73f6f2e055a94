// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared by unit tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by tests that own the process's SIGSEGV handler or measure its memory.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
