// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared by unit tests, and by the tests of the command.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Write a program. Another process does: a child that another test forks meanwhile would have the file open for
/// writing, and the kernel executes no such file.
pub fn program(path: &Path, text: &str) {
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    let written = Command::new("sh").args(["-c", script, "sh"]).arg(path).arg(text).status().unwrap();
    assert!(written.success());
}

/// Held by tests that own the process's SIGSEGV handler or measure its memory.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
