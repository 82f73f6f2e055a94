// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of both programs: that nobody can read them is an error, and no reason to panic.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Print a line on standard output.
///
/// # Errors
/// Why it cannot be written.
pub fn say(line: impl Display) -> Result<(), String> {
    let mut out = io::stdout();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|error| format!("cannot write standard output: {error}"))
}

/// What clap found: the arguments, or the exit code after it has printed help or a mistake.
///
/// # Errors
/// Why that cannot be written.
pub fn parse<Cli: clap::Parser>() -> Result<Result<Cli, ExitCode>, String> {
    let said = match Cli::try_parse() {
        Ok(cli) => return Ok(Ok(cli)),
        Err(said) => said,
    };
    match said.print().and_then(|()| io::stdout().flush()) {
        Err(error) if !said.use_stderr() => Err(format!("cannot write standard output: {error}")),
        _ => Ok(Err(ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)))),
    }
}

/// Print a line on standard error. If that cannot be written either, the exit code says it.
pub fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
