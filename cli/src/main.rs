// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `trapless` command: what the accelerators of this project can do on a real host.
//!
//! Exit codes, kept by every sub-command: 0 it ran to its end (a target that exits and a reader that goes away
//! are ends like any other), 1 it could not, with one message that says why, 2 wrong arguments.

mod destination;
mod dirty;
mod doctor;
mod output;
mod pagetable;
mod parse;
mod stop;
#[cfg(test)]
mod testing;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What was asked.
#[derive(Debug, Parser)]
#[command(name = "trapless", version, about = "Fewer traps: page tables, dirty pages, exits", long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What works on this host, and why the rest does not
    Doctor(doctor::Arguments),
    /// Watch, record and measure the tracking of dirty pages
    #[command(subcommand)]
    Dirty(dirty::Command),
    /// Load, watch and unload the accelerator of Xen PV page tables
    #[command(subcommand)]
    Pagetable(pagetable::Command),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Dirty(command) => dirty::run(command),
        Command::Pagetable(command) => pagetable::run(&command),
    };
    match result {
        Ok(code) => code,
        Err(error) if output::reader_went_away(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trapless: {error:#}");
            ExitCode::FAILURE
        }
    }
}
