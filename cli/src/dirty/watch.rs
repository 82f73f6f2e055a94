// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty watch`: shows live what a process writes, for a person or for a program.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::sample::Sample;
use super::session::{self, Next, Session};
use super::view;
use crate::output::{self, bytes, grouped};

const HELP: &str = "\
Everything the process has mapped is watched. Pages that may have been written
(of a mapping that is new, or that cannot be tracked) count separately, as
assumed.

Keys: q quits, s sorts, p pauses. Without a terminal it prints a line an
interval. With --json each line is an object as in a recording: see
trapless dirty record --help.

Ends with exit code 0 on q, Ctrl-C, SIGTERM, SIGHUP, and when the process exits
or calls execve; otherwise it continues untracked. Exit code 1 if it cannot
be tracked, 2 for wrong arguments.

For the working set each interval of the window takes at most about one bit for
each page of the 256 MiB stretches that were written in it.";

/// What to watch, and how to print it.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    session: session::Arguments,
    /// Print one JSON object an interval
    #[arg(long)]
    json: bool,
}

/// Watch until the end.
///
/// # Errors
/// No such process, no permission, no back end; or the output cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut session = Session::begin(&arguments.session)?;
    let last = if !arguments.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        view::run(&mut session, arguments.session.window)?
    } else {
        lines(&mut session, arguments.json)?
    };
    let (pid, command) = (session.pid, session.command.clone());
    drop(session);
    if let Some(gone) = last.and_then(|sample| sample.gone) {
        crate::output::remark!("trapless: process {pid} ({command}) {gone}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the last sample.
fn lines(session: &mut Session, json: bool) -> Result<Option<Sample>> {
    if !json {
        output::line(&format!("{} ({}), back end {}", session.pid, session.command, session.backend()))?;
    }
    let mut last = None;
    while session.wait(None)? == Next::Sample {
        let sample = session.sample()?;
        output::line(&if json { serde_json::to_string(&sample)? } else { plain(&sample) })?;
        let is_gone = sample.gone.is_some();
        last = Some(sample);
        if is_gone {
            break;
        }
    }
    Ok(last)
}

/// A sample on one line, with the three most written mappings.
fn plain(sample: &Sample) -> String {
    let mut busiest: Vec<_> = sample.mappings.iter().filter(|mapping| mapping.written > 0).collect();
    busiest.sort_by_key(|mapping| std::cmp::Reverse(mapping.written));
    let busiest: Vec<_> = busiest
        .iter()
        .take(3)
        .map(|mapping| format!("{} {}", mapping.name, grouped(mapping.written)))
        .collect();
    format!(
        "{:8.1} s  {:>12} pages/s  working set {:>10}  assumed {:>9}  {}",
        sample.t,
        grouped(sample.rate().round() as u64),
        bytes(sample.working_set),
        grouped(sample.assumed),
        busiest.join(", ")
    )
}
