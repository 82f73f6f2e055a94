// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results, for people and for machines.

use std::fmt::Write;

use serde::Serialize;

use crate::outcome::Verdict;

/// One scenario held against one back end.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The back end.
    pub backend: String,
    /// Which process was tracked.
    pub target: String,
    /// The scenario.
    pub scenario: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
}

/// A back end that was left out.
#[derive(Debug, Clone, Serialize)]
pub struct Rejected {
    /// The back end.
    pub backend: String,
    /// Why.
    pub why: String,
}

/// Everything.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Whether nothing was missed, went wrong or crashed.
    pub good: bool,
    /// What does not work here.
    pub rejected: Vec<Rejected>,
    /// What was run.
    pub rows: Vec<Row>,
}

impl Row {
    /// The row as a line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let head = format!("{:<11} {:<6} {:<18}", self.backend, self.target, self.scenario);
        match &self.verdict {
            Verdict::Skipped(why) => format!("{head} skipped: {why}"),
            Verdict::Crashed(how) => format!("{head} CRASHED: {how}"),
            Verdict::Done(outcome) => {
                let word = if outcome.is_good() { "ok" } else { "FAILED" };
                let doubts: u64 = outcome.doubts.values().sum();
                let mut line = format!(
                    "{head} {word:<7} {:>7} {:>8} {:>9} {doubts:>8} {:>8} {:>7.1}s",
                    outcome.missed, outcome.spurious, outcome.pages, outcome.collects, self.seconds
                );
                for failure in &outcome.failures {
                    let _ = write!(line, "\n    wrong: {failure}");
                }
                for note in &outcome.notes {
                    let _ = write!(line, "\n    {note}");
                }
                for (reason, pages) in &outcome.doubts {
                    let _ = write!(line, "\n    {pages} pages: {reason}");
                }
                line
            }
        }
    }
}

/// What stands above the lines.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:<11} {:<6} {:<18} {:<7} {:>7} {:>8} {:>9} {:>8} {:>8} {:>8}",
        "back end", "target", "scenario", "", "missed", "spurious", "written", "in doubt", "collects", "took"
    )
}
