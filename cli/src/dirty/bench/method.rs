// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of what is measured: tracking one range, from arming to the end, by the library or a twin.

use anyhow::Result;
use libdirty::{BackendKind, Builder, Dirty, PageRange, Reason, Tracker};

/// A way to find dirty pages, armed on one range.
pub trait Method {
    /// Find the pages written since the last call, into a list that is kept inside, and arm them again.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn collect(&mut self) -> Result<()>;

    /// What the last collect found: sorted, apart from each other.
    fn reported(&self) -> Vec<PageRange>;

    /// Pages of the last collect that were reported as not knowable, not as written.
    fn in_doubt(&self) -> usize {
        0
    }
}

/// The library's tracker.
#[derive(Debug)]
pub struct Library {
    tracker: Tracker,
    dirty: Dirty,
}

impl Library {
    /// # Errors
    /// When the back end does not work here.
    pub fn start(kind: BackendKind, range: PageRange) -> Result<Self> {
        Self::with(Tracker::builder().backend(kind), range)
    }

    /// # Errors
    /// As [`Library::start`].
    pub fn with(builder: Builder, range: PageRange) -> Result<Self> {
        let mut tracker = builder.own()?;
        tracker.watch(range)?;
        Ok(Library { tracker, dirty: Dirty::new() })
    }
}

impl Method for Library {
    fn collect(&mut self) -> Result<()> {
        Ok(self.tracker.collect(&mut self.dirty)?)
    }

    fn reported(&self) -> Vec<PageRange> {
        self.dirty.extents().iter().map(|extent| extent.range).collect()
    }

    fn in_doubt(&self) -> usize {
        let doubted = self.dirty.extents().iter().filter(|extent| extent.reason != Reason::Written);
        doubted.map(|extent| extent.range.pages()).sum()
    }
}
