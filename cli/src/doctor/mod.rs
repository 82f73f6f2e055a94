// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless doctor`: what works on this host, and why the rest does not.
//!
//! After the host's section there is one for each accelerator, each determined by trying. A person gets a few lines
//! and, with `--verbose`, everything, 80 columns wide; a program gets everything as JSON.

pub mod dirty;
pub mod host;
pub mod pagetable;
pub mod signing;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};

use crate::output;

/// How to print it.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 0 if every accelerator that this host can gain from can work here, 1 if one cannot."
)]
pub struct Arguments {
    /// Print one JSON object, a key a section
    #[arg(long)]
    json: bool,
    /// Show the reasons, and the limits of each back end
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
}

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Of the sections' names.
const INDENT: usize = 11;

/// The report on one accelerator, or on the host.
pub struct Section {
    /// Key in the JSON and heading of the text.
    pub name: &'static str,
    /// It works, or is not needed here.
    pub works: bool,
    /// The most important facts, in a line or two.
    pub summary: Vec<String>,
    /// The whole report.
    pub text: String,
    pub json: Value,
}

const SECTIONS: [fn() -> Result<Section>; 3] = [host::section, dirty::section, pagetable::section];

/// Examine the host and print the report.
///
/// # Errors
/// When the kernel cannot be identified, or the report cannot be printed.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let sections: Vec<Section> = SECTIONS.iter().map(|look| look()).collect::<Result<_>>()?;
    if arguments.json {
        let keys: Map<_, _> = sections.iter().map(|s| (s.name.to_owned(), s.json.clone())).collect();
        output::line(&serde_json::to_string_pretty(&keys)?)?;
    } else if !arguments.verbose {
        for section in &sections {
            let lines = section.summary.iter().flat_map(|line| wrapped(line, WIDTH - INDENT));
            for (line, name) in lines.zip(std::iter::once(section.name).chain(std::iter::repeat(""))) {
                output::line(&format!("{name:INDENT$}{line}"))?;
            }
        }
        output::line("More: trapless doctor --verbose")?;
    } else {
        let texts: Vec<_> = sections.iter().map(|s| format!("{}\n{}", s.name, s.text.trim_end())).collect();
        output::line(&texts.join("\n\n"))?;
    }
    Ok(if sections.iter().all(|section| section.works) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `text` in lines of at most `width` characters, wrapped at spaces if possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// `text` in lines of a terminal: `head` before the first, as many spaces before the others.
fn hanging(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let lines = wrapped(text, WIDTH - indent);
    let heads = std::iter::once(head.to_owned()).chain(std::iter::repeat(" ".repeat(indent)));
    lines.iter().zip(heads).map(|(line, head)| format!("{head}{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_spaces() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("longer than that", 3), ["longer", "than", "that"]);
        assert!(wrapped("", 9).is_empty());
        assert_eq!(hanging("- ", "a b"), "- a b\n");
    }
}
