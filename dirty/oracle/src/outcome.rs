// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out of holding one back end against one scenario.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Pages whose memory differed from the copy while the program held still.
    pub missed: u64,
    /// Pages reported as written whose content was that of the copy (where nothing raced).
    pub spurious: u64,
    /// Pages reported as written.
    pub pages: u64,
    /// Collects.
    pub collects: u64,
    /// Stores of threads that wrote while the tracker worked.
    #[serde(default)]
    pub writes: u64,
    /// Pages reported for another reason, by reason.
    pub doubts: BTreeMap<String, u64>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// What went against the rules besides missed pages.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Nothing missed and nothing wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.missed == 0 && self.failures.is_empty()
    }

    /// So many pages from `address` on were missed. The first few such are noted.
    pub fn miss(&mut self, address: usize, pages: usize, what: &str) {
        if self.missed < MISSES {
            self.notes.push(format!("missed after collect {}: {address:#x} {what}", self.collects));
        }
        self.missed += pages as u64;
    }

    /// Something went against the rules. The first few such are named.
    pub fn fail(&mut self, what: String) {
        match self.failures.len() {
            0..FAILURES => self.failures.push(what),
            FAILURES => self.failures.push("and more".into()),
            _ => {}
        }
    }
}

/// Missed pages that are listed one by one.
const MISSES: u64 = 4;
/// Failures that are named.
const FAILURES: usize = 8;

/// Why a scenario ended early.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// It cannot run here.
    #[error("{0}")]
    Skip(String),
    /// Something that should work did not.
    #[error("{0}")]
    Fail(String),
}

impl Stop {
    /// It cannot run here, and why.
    pub fn skip(why: impl Into<String>) -> Self {
        Stop::Skip(why.into())
    }

    /// Something went wrong.
    pub fn fail(what: impl Into<String>) -> Self {
        Stop::Fail(what.into())
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop::Fail(error.to_string())
    }
}

impl From<libdirty::Error> for Stop {
    fn from(error: libdirty::Error) -> Self {
        match error {
            libdirty::Error::Rejected { .. } => Stop::Skip(error.to_string()),
            error => Stop::Fail(error.to_string()),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It ran to the end.
    Done(Outcome),
    /// It cannot run here, and why.
    Skipped(String),
    /// Its process died or hung.
    Crashed(String),
}

impl Verdict {
    /// How many writes raced with the tracker.
    #[must_use]
    pub fn writes(&self) -> u64 {
        match self {
            Verdict::Done(outcome) => outcome.writes,
            _ => 0,
        }
    }

    /// Whether nothing speaks against the back end.
    #[must_use]
    pub fn is_good(&self) -> bool {
        match self {
            Verdict::Done(outcome) => outcome.is_good(),
            Verdict::Skipped(_) => true,
            Verdict::Crashed(_) => false,
        }
    }
}
