// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of one interval. The same object is a line of `watch --json` and a line of a recording.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One interval. Counts are pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Seconds since tracking began, at the end of the interval.
    pub t: f64,
    /// Seconds that it lasted.
    pub seconds: f64,
    /// Pages seen written.
    pub written: u64,
    /// Pages that count as dirty for another reason, such as a new mapping or one that cannot be tracked.
    pub assumed: u64,
    /// The same by reason.
    pub assumed_why: BTreeMap<String, u64>,
    /// Pages seen written within the window, each counted once.
    pub working_set: u64,
    /// Mappings with at least one of these pages, in order of addresses.
    pub mappings: Vec<MappingSample>,
    /// Set in the last sample if the process is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Gone>,
}

/// A mapping's part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappingSample {
    pub start: Address,
    pub end: Address,
    pub name: String,
    pub written: u64,
    pub assumed: u64,
}

/// Why the process's memory is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gone {
    Exited,
    Exec,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gone::Exited => "has ended",
            Gone::Exec => "has called execve: the memory that was watched is gone",
        })
    }
}

impl Sample {
    /// Pages seen written a second.
    pub fn rate(&self) -> f64 {
        self.written as f64 / self.seconds
    }
}

/// An address, written as in `/proc/PID/maps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(pub usize);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        usize::from_str_radix(&text, 16)
            .map(Address)
            .map_err(|_| format!("{text:?} is not a hexadecimal address"))
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
