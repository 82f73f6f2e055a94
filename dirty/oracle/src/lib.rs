// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds trackers of dirty pages against memory itself: the back ends of libdirty, and plug-ins.
//!
//! The [`judge`] keeps a copy of the watched memory ([`shadow`]) that it updates only from what a collect reports,
//! as a checkpointer would. Whenever the program holds still it collects once more and compares the copy with the
//! memory, byte for byte: a page that differs was *missed*. No [`tracker`]'s own word is ever taken.
//!
//! What the program does is data ([`op`]): a list of operations carried out by a [`workload`], in the own process or
//! in another. [`scenario`]s are such lists written by hand; [`sequence`]s are generated, and shrink. Each runs in
//! a process of its own ([`run`]), so that a crash is a result and not the end.

pub mod churn;
#[cfg(target_arch = "x86_64")]
pub mod guest;
pub mod judge;
pub mod kernel_writes;
pub mod memory;
pub mod noise;
pub mod op;
pub mod outcome;
pub mod output;
pub mod perform;
pub mod pinned;
pub mod program;
pub mod property;
pub mod report;
pub mod run;
pub mod scenario;
pub mod sequence;
pub mod shadow;
pub mod subject;
mod sys;
pub mod tap;
pub mod tracker;
pub mod workload;
pub mod writers;

/// Parse an option's seconds.
///
/// # Errors
/// When it is no number, negative, or more than a year.
pub fn seconds(text: &str) -> Result<f64, String> {
    const YEAR: f64 = 366.0 * 86400.0;
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds")?;
    if (0.0..=YEAR).contains(&seconds) { Ok(seconds) } else { Err("0 at least, and a year at most".into()) }
}
