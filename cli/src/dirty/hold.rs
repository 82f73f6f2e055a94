// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty hold`: keeps trackers for clients that come and go.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use libdirty::BackendKind;
use libdirty_hold::{Holder, Options};

use crate::output;
use crate::parse;
use crate::stop::Stop;

/// Options.
#[derive(Debug, Args)]
#[command(after_help = "The protocol is described in trapless-dirty-hold(7).")]
pub struct Arguments {
    /// Processes to track from now on, with their children
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pids: Vec<i32>,
    /// Listen here
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Permissions of the socket, in octal: who may connect
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse::mode)]
    mode: u32,
    /// Seconds between two looks for new children
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse::seconds)]
    interval: Duration,
    /// End by itself when nothing has been tracked and nobody connected for so many seconds
    #[arg(long, value_name = "S", value_parser = parse::seconds)]
    idle: Option<Duration>,
    /// The back end [default: the cheapest that works]
    #[arg(long, value_name = "NAME", value_parser = parse::backend)]
    backend: Option<BackendKind>,
}

/// Serve until a signal asks for an end.
///
/// # Errors
/// The socket cannot be made, or a process not be tracked; nothing is tracked then.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let stop = Stop::new().context("cannot listen for signals")?;
    let options = Options {
        backend: arguments.backend,
        interval: arguments.interval,
        mode: arguments.mode,
        idle: arguments.idle,
    };
    let path = arguments.socket.display();
    let mut holder =
        Holder::new(&arguments.socket, options).with_context(|| format!("cannot listen at {path}"))?;
    for pid in &arguments.pids {
        holder.track(*pid)?;
    }
    output::line(&format!("holding: {path}"))?;
    holder.run(stop.as_raw_fd())?;
    Ok(ExitCode::SUCCESS)
}
