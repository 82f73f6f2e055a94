// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless criu …`: criu as it is installed, with dirty-page tracking by libdirty.
//!
//! What happens, in this order: criu, the library to be preloaded and a holder are found, the holder is started if there
//! is none, the processes to be dumped are tracked, and then this process becomes criu.
//!
//! Invariants:
//! - criu gets its arguments, descriptors and environment as they are, but for the three variables that [`environment`] sets.
//!   Its exit status is criu's own, for it is criu.
//! - `restore` and what has nothing to do with a process's memory run without the library: it would have the holder
//!   track processes that are still being made.
//! - Where soft-dirty would be the back end, criu runs by itself: it reads the kernel's bits as well as we could.
//! - A process that cannot be tracked is no reason to stop. criu takes all of it for dirty then, and it is said.

mod arguments;
mod holder;
mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use libdirty::BackendKind;

use self::arguments::Purpose;
use self::holder::Source;
use crate::parse;

/// Where the socket of the holder is named, as for the shim.
const HOLD: &str = "TRAPLESS_DIRTY_HOLD";

/// Options: those before criu's command are ours, all from there on are criu's.
#[derive(Debug, Args)]
#[command(after_help = "See trapless-criu(1).")]
pub struct Arguments {
    /// The holder's socket; where nobody listens, a holder is started [default: `TRAPLESS_DIRTY_HOLD`, or
    /// trapless-dirty-hold.socket in /run or in `XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH")]
    hold: Option<PathBuf>,
    /// The back end of a holder that is started [default: the cheapest that works]
    #[arg(long, value_name = "NAME", value_parser = parse::backend)]
    backend: Option<BackendKind>,
    /// The criu to run
    #[arg(long, value_name = "PATH", default_value = "criu")]
    program: PathBuf,
    /// The library to preload [default: libdirty-softdirty.so where trapless is installed]
    #[arg(long, value_name = "PATH")]
    preload: Option<PathBuf>,
    /// criu's command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    criu: Vec<OsString>,
}

/// Become criu.
///
/// # Errors
/// criu, the library or a holder is missing. Nothing is tracked then, unless it was before.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let criu = program::find(&arguments.program)?;
    let mut command = Command::new(&criu);
    command.args(&arguments.criu);
    let purpose = Purpose::of(&arguments.criu);
    if purpose != Purpose::Other {
        program::check_preloadable(&criu)?;
        let library = match &arguments.preload {
            Some(path) => program::existing(path)?,
            None => program::library()?,
        };
        let socket = holder::socket(arguments.hold.clone())?;
        match holder::source(&socket, arguments.backend)? {
            Source::Holder(backend) => {
                if purpose == Purpose::Dump {
                    let mut client = holder::find_or_start(&socket, backend)?;
                    if let Some(pid) = arguments::tree(&arguments.criu) {
                        holder::track_tree(&mut client, pid);
                    }
                }
                environment(&mut command, &library, &socket);
            }
            Source::Kernel => crate::output::remark!(
                "trapless: criu uses the kernel's own soft-dirty bits: no cheaper back end works here"
            ),
        }
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", criu.display()))
}

/// What the library is told (dirty/shim/src/settings.rs): of criu's own memory nothing is to be known, and criu stops a
/// process before it reads its pagemap.
fn environment(command: &mut Command, library: &std::path::Path, socket: &std::path::Path) {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut words = OsString::from("others,stopped");
    if let Some(more) = std::env::var_os("LIBDIRTY_SOFTDIRTY").filter(|more| !more.is_empty()) {
        words.push(",");
        words.push(more);
    }
    command.env("LD_PRELOAD", preload).env("LIBDIRTY_SOFTDIRTY", words).env(HOLD, socket);
}
