// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is judged: a tracker of dirty pages, whoever made it.
//!
//! Invariant: the judge learns of writes by [`Tracker::collect`] alone. What a tracker says of itself, its [`Record`],
//! only decides which scenarios it is held against.

use std::fmt::Debug;

use libdirty::{Capabilities, PageRange, Reason, Sees};

use crate::outcome::Stop;

/// What is to be done with reported pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nothing is mapped there any more.
    Gone,
    /// Written: to be copied.
    Written,
    /// They read as zeros, which is what the copy is to have.
    Zero,
    /// Nobody knows whether they were written: to be copied.
    Doubtful,
}

/// Pages that a collect reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Which.
    pub range: PageRange,
    /// What is to be done.
    pub state: State,
    /// Why they were reported.
    pub why: &'static str,
}

/// What a tracker promises.
#[derive(Debug, Clone)]
pub struct Record {
    /// Reports only pages that were written.
    pub exact: bool,
    /// Writes by the kernel on behalf of the process.
    pub kernel_writes: Sees,
    /// Writes through `process_vm_writev(2)`.
    pub foreign_writes: Sees,
    /// Writes through `/proc/PID/mem`.
    pub mem_writes: Sees,
    /// Writes between two changes of protection by the program.
    pub reprotected_writes: Sees,
    /// Writes to memory that `mremap(2)` has moved or grown.
    pub remapped_writes: Sees,
    /// Writes to shared memory through another mapping.
    pub shared_aliases: Sees,
    /// Writes into pages that were pinned before the last collect.
    pub pinned_writes: Sees,
    /// Writes to pages that were reclaimed or merged before they were collected.
    pub reclaimed_writes: Sees,
    /// Reports memory that is no longer mapped, and every page of a new mapping. Of another the user looks at the
    /// mappings himself.
    pub reports_gone: bool,
    /// Refuses to watch what is watched, and to unwatch what is not.
    pub refuses_ranges: bool,
    /// Can collect a range alone, and peek.
    pub collects_ranges: bool,
    /// Scenarios that it excludes by their names.
    pub excluded: Vec<String>,
}

impl Record {
    /// One that promises everything, but for these scenarios.
    #[must_use]
    pub fn without(excluded: Vec<String>) -> Self {
        let sees = |name: &str| {
            if excluded.iter().any(|other| other == name) { Sees::No } else { Sees::Yes }
        };
        Record {
            exact: false,
            kernel_writes: sees("read"),
            foreign_writes: sees("process-vm-writev"),
            mem_writes: sees("proc-mem"),
            reprotected_writes: sees("protection"),
            remapped_writes: sees("mremap"),
            shared_aliases: sees("shared-alias"),
            pinned_writes: sees("pinned"),
            reclaimed_writes: sees("write-back"),
            reports_gone: false,
            refuses_ranges: false,
            collects_ranges: false,
            excluded,
        }
    }
}

impl From<&Capabilities> for Record {
    fn from(capabilities: &Capabilities) -> Self {
        Record {
            exact: capabilities.exact,
            kernel_writes: capabilities.kernel_writes,
            foreign_writes: capabilities.foreign_writes,
            mem_writes: capabilities.mem_writes,
            reprotected_writes: capabilities.reprotected_writes,
            remapped_writes: capabilities.remapped_writes,
            shared_aliases: capabilities.shared_aliases,
            pinned_writes: capabilities.pinned_writes,
            reclaimed_writes: capabilities.reclaimed_writes,
            reports_gone: true,
            refuses_ranges: true,
            collects_ranges: true,
            excluded: Vec::new(),
        }
    }
}

/// Tracks one process until it is dropped.
pub trait Tracker: Debug {
    /// What it promises.
    fn record(&self) -> &Record;

    /// Watch a range; later writes are reported.
    ///
    /// # Errors
    /// Its own.
    fn watch(&mut self, range: PageRange) -> Result<(), Stop>;

    /// Stop watching a range.
    ///
    /// # Errors
    /// Its own.
    fn unwatch(&mut self, range: PageRange) -> Result<(), Stop>;

    /// Append what was written since the last collect, in order of addresses and without overlap. Rules that it broke
    /// in doing so are appended to `wrong`.
    ///
    /// # Errors
    /// Its own.
    fn collect(&mut self, found: &mut Vec<Reported>, wrong: &mut Vec<String>) -> Result<(), Stop>;

    /// The same of `range` alone; what was written elsewhere is left to the collects that cover it.
    ///
    /// # Errors
    /// Its own.
    fn collect_range(
        &mut self,
        _range: PageRange,
        _found: &mut Vec<Reported>,
        _wrong: &mut Vec<String>,
    ) -> Result<(), Stop> {
        Err(Stop::skip("it cannot collect a range alone"))
    }

    /// The same, and nothing is taken from any collect.
    ///
    /// # Errors
    /// Its own.
    fn peek_range(
        &mut self,
        _range: PageRange,
        _found: &mut Vec<Reported>,
        _wrong: &mut Vec<String>,
    ) -> Result<(), Stop> {
        Err(Stop::skip("it cannot peek"))
    }

    /// The process has ended or replaced its memory, for this `reason`: hold it against what it promises of that.
    ///
    /// # Errors
    /// When it breaks the promise.
    fn check_ended(&mut self, ranges: &[PageRange], reason: Reason) -> Result<(), Stop>;

    /// This is a forked child of the process that made it: hold it against what it promises of that.
    ///
    /// # Errors
    /// When it breaks the promise.
    fn check_forked(&mut self) -> Result<(), Stop>;
}
