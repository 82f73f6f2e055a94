// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `trapless` command: what the accelerators of this project can do on a real host.
//!
//! Exit codes of every sub-command: 0 it ran to its end (also if the target exits or output is a closed pipe), 1 it
//! failed, with one message that says why, 2 wrong arguments.

mod criu;
mod destination;
mod dirty;
mod doctor;
mod output;
mod pagetable;
mod parse;
mod stop;
#[cfg(test)]
mod testing;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use signal_hook::consts::SIGXFSZ;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "trapless", version, about = "Fewer traps: page tables, dirty pages, exits", long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what works on this host, and why the rest does not
    Doctor(doctor::Arguments),
    /// Watch, record and measure the tracking of dirty pages
    #[command(subcommand)]
    Dirty(dirty::Command),
    /// Run criu with dirty-page tracking by libdirty
    Criu(criu::Arguments),
    /// Load, watch and unload the accelerator of Xen PV page tables
    #[command(subcommand)]
    Pagetable(pagetable::Command),
    /// Print what a shell completes of this command: trapless completions bash
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    // So a limit of file sizes is an error of write(2), as a full disk is. A handler, for exec would hand on SIG_IGN.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(said) => return say(&said),
    };
    let result = match command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Dirty(command) => dirty::run(command),
        Command::Criu(arguments) => criu::run(&arguments),
        Command::Pagetable(command) => pagetable::run(&command),
        Command::Completions { shell } => completions(shell),
    };
    match result {
        Ok(code) => code,
        Err(error) if output::reader_went_away(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads it, the exit code still says it.
            output::remark!("trapless: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Print what clap says: help or the version on standard output, a mistake on standard error.
fn say(said: &clap::Error) -> ExitCode {
    match said.print().and_then(|()| io::stdout().flush()) {
        Err(error) if !said.use_stderr() && error.kind() != io::ErrorKind::BrokenPipe => {
            output::remark!("trapless: {}", output::unwritable(error));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
    }
}

/// Print the script that makes `shell` complete this command.
fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "trapless", &mut script);
    output::line(String::from_utf8(script)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
