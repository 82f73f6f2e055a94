// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless-vmm`: boots a Linux kernel on KVM, and offers it the log of the pages that its processors write
//! (Shadow PML, docs/spml.md).
//!
//! Exit codes: 0 the guest reset the machine, 1 it could not be run or broke down, with one message that says
//! why, 2 wrong arguments. A kernel that panics with `panic=-1` resets the machine too: only its console shows it.

mod abi;
mod boot;
mod devices;
mod forward;
mod guest_ring;
mod kvm_log;
mod kvm_ring;
mod layout;
mod machine;
mod mp_table;
mod self_test;
mod vcpus;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bytesize::ByteSize;
use clap::Parser;

use machine::Configuration;

/// Boot a Linux kernel on KVM, with a log of the pages it writes
#[derive(Debug, Parser)]
#[command(name = "trapless-vmm", version)]
struct Arguments {
    /// A bzImage or an uncompressed ELF kernel
    #[arg(long)]
    kernel: PathBuf,
    /// Its initial root file system
    #[arg(long)]
    initramfs: Option<PathBuf>,
    /// Its command line; the console is the serial port, ttyS0
    #[arg(long, default_value = "console=ttyS0 reboot=k panic=-1")]
    cmdline: String,
    /// Memory, 128MiB to 3GiB
    #[arg(long, default_value = "512MiB")]
    memory: ByteSize,
    /// Virtual processors
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(mp_table::MAX_CPUS)))]
    cpus: u8,
    /// Do not offer the log, nor require that the host has one
    #[arg(long)]
    no_log: bool,
    /// At the end say on standard error what was counted
    #[arg(long)]
    counts: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let configuration = Configuration {
        kernel: arguments.kernel,
        initramfs: arguments.initramfs,
        command_line: arguments.cmdline,
        memory: arguments.memory.as_u64(),
        cpus: arguments.cpus,
        log: !arguments.no_log,
    };
    match machine::run(&configuration) {
        Ok(counts) => {
            if arguments.counts {
                remark(format_args!("{counts:?}"));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            remark(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Print a line on standard error. That nobody can read it is no reason to end the machine.
fn remark(line: impl Display) {
    let _ = writeln!(io::stderr(), "trapless-vmm: {line}");
}
