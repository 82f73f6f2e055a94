// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of both programs: that nobody can read them is an error, and no reason to panic.

use std::fmt::Display;
use std::io::{self, Write};

/// Print a line on standard output.
///
/// # Errors
/// Why it cannot be written.
pub fn say(line: impl Display) -> Result<(), String> {
    let mut out = io::stdout();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|error| format!("cannot write standard output: {error}"))
}

/// Print a line on standard error. If that cannot be written either, the exit code says it.
pub fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
