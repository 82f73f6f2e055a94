// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless-power-vmm`: boots a Linux kernel on KVM on an e500v2. There is no global state: each guest is a process.
//!
//! Standard output is the guest's serial port, byte for byte, and standard input feeds it; the VMM's own messages
//! go to standard error. Exit codes: 0 the guest reset the machine, 1 it could not be run or failed, with one
//! message that says why, 2 wrong arguments. A kernel that panics with `panic=-1` resets the machine, too: only its
//! console shows the difference.

mod arguments;
mod board;
mod console;
mod elf;
#[cfg(test)]
mod headers;
mod host;
mod kvm;
mod layout;
mod log;
mod machine;
mod mapping;
mod memory;
mod replay;
mod spin;
mod statistics;
mod tree;
mod virtio;

use std::env;
use std::process::ExitCode;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::read(env::args_os()).unwrap_or_else(|error| error.exit());
    match machine::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trapless-power-vmm: {error:#}");
            ExitCode::FAILURE
        }
    }
}
