// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages about what a guest does, of which one source prints only a few: a faulty guest must not fill the host's
//! log.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

const PRINT_AT_MOST: u32 = 8;

/// A source of messages.
#[derive(Debug, Default)]
pub struct Log(AtomicU32);

impl Log {
    /// Print a message, unless there were too many.
    pub fn print(&self, message: impl Display) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.saturating_add(1), Ordering::Relaxed);
        if before < PRINT_AT_MOST {
            eprintln!("trapless-power-vmm: {message}");
        }
        if before == PRINT_AT_MOST - 1 {
            eprintln!("trapless-power-vmm: further messages of this kind are not printed");
        }
    }

    /// How many there were.
    #[cfg(test)]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
