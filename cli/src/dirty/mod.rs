// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty`: the tracking of dirty pages on real programs.

mod bench;
mod hold;
mod names;
mod plot;
mod record;
mod recording;
mod sample;
mod session;
mod verify;
mod view;
mod watch;
mod working_set;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what a running process writes, live
    Watch(watch::Arguments),
    /// Write what a running process writes into a file
    Record(record::Arguments),
    /// Draw a recording
    Plot(plot::Arguments),
    /// Keep trackers for clients that connect from time to time: between a pre-dump and a dump
    Hold(hold::Arguments),
    /// Measure what tracking costs on this host
    Bench(bench::Arguments),
    /// Judge the back ends that work here by what they miss: a minute, and a report
    Verify(verify::Arguments),
}

/// Run one.
///
/// # Errors
/// The reason why the sub-command failed.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Plot(arguments) => plot::run(&arguments),
        Command::Hold(arguments) => hold::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
    }
}
