// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless doctor`: what works on this host, and why the rest does not.
//!
//! One section an accelerator, after the host's own; each is found anew by trying, and told as text and as JSON.

pub mod dirty;
pub mod host;
pub mod pagetable;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};

use crate::output;

/// How to tell.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 0 if every accelerator that this host can gain from can work here, 1 if one cannot."
)]
pub struct Arguments {
    /// Print one JSON object, a key a section
    #[arg(long)]
    json: bool,
}

/// What is to be said of one accelerator, or of the host.
pub struct Section {
    /// Key in the JSON and heading of the text.
    pub name: &'static str,
    /// It works, or has nothing to do here.
    pub works: bool,
    pub text: String,
    pub json: Value,
}

const SECTIONS: [fn() -> Result<Section>; 3] = [host::section, dirty::section, pagetable::section];

/// Look and tell.
///
/// # Errors
/// When the kernel does not say what it is, or the answer cannot be printed.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let sections: Vec<Section> = SECTIONS.iter().map(|look| look()).collect::<Result<_>>()?;
    if arguments.json {
        let keys: Map<_, _> = sections.iter().map(|s| (s.name.to_owned(), s.json.clone())).collect();
        output::line(&serde_json::to_string_pretty(&keys)?)?;
    } else {
        let texts: Vec<_> = sections.iter().map(|s| format!("{}\n{}", s.name, s.text.trim_end())).collect();
        output::line(&texts.join("\n\n"))?;
    }
    Ok(if sections.iter().all(|section| section.works) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
