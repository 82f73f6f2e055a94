// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty record`: writes samples to a file, one per line.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde::Serialize;

use super::recording::{FORMAT, Header};
use super::session::{self, Next, Session};
use crate::{destination, parse};

const HELP: &str = "\
Ends with exit code 0 after --duration, on Ctrl-C, SIGTERM, SIGHUP, and when the
process exits or calls execve; otherwise it continues untracked. Exit code 1
if it cannot be tracked or the file cannot be written, 2 for wrong arguments.
Draw the file with: trapless dirty plot
";

/// What to record, and where.
#[derive(Debug, Args)]
#[command(after_help = HELP, after_long_help = format!("{HELP}\n{FORMAT}"))]
pub struct Arguments {
    #[command(flatten)]
    session: session::Arguments,
    /// The file to write, which must not exist; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Seconds to record [default: until a signal or the end of the process]
    #[arg(long, value_name = "S", value_parser = parse::seconds)]
    duration: Option<Duration>,
}

/// Record until the end.
///
/// # Errors
/// No such process, no permission, no back end; or the file cannot be written: what it has so far remains readable,
/// and there is none without its header.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let path = &arguments.output;
    if !arguments.force && destination::has_content(path) {
        // Before the target is touched.
        bail!("{} exists; choose another name, or replace it with --force", path.display());
    }
    let file = destination::prepare(path).map_err(|error| unwritable(path, error))?;
    let mut session = Session::begin(&arguments.session)?;
    if let Some(most) = arguments.duration {
        session.end_after(most);
    }
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = Header::new(
        session.pid,
        session.command.clone(),
        session.backend().to_string(),
        arguments.session.interval.as_secs_f64(),
        arguments.session.window.as_secs_f64(),
        began.as_secs_f64(),
    );
    let mut file = file.create(&line(&header)?, arguments.force).map_err(|error| unwritable(path, error))?;

    let mut intervals = 0u64;
    let gone = loop {
        let next = session.wait(None)?;
        // The last, shorter interval counts too.
        let sample = session.sample()?;
        // One call, so that no reader sees a part of a line unless the file system is full.
        file.write_all(&line(&sample)?)
            .and_then(|()| file.flush())
            .map_err(|error| unwritable(path, error))?;
        intervals += 1;
        if next == Next::Stop || sample.gone.is_some() {
            break sample.gone;
        }
    };
    let (pid, command) = (session.pid, session.command.clone());
    drop(session);
    if let Some(gone) = gone {
        crate::output::remark!("trapless: process {pid} ({command}) {gone}");
    }
    crate::output::remark!("trapless: {intervals} intervals in {}", destination::name(path));
    Ok(ExitCode::SUCCESS)
}

fn line(content: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(content)?;
    text.push(b'\n');
    Ok(text)
}

/// That nobody reads standard output any more ends the command well; that nobody reads a named pipe does not.
fn unwritable(path: &Path, error: io::Error) -> anyhow::Error {
    let what = format!("cannot write {}", destination::name(path));
    if path.as_os_str() == "-" { anyhow::Error::new(error).context(what) } else { anyhow!("{what}: {error}") }
}
