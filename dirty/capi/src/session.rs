// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a handle names: a tracker, with the unread extents of its last collect or peek.

use libdirty::{Dirty, Tracker};

use crate::failure::{Failure, Outcome};

/// Pages reported dirty, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Extent {
    /// Address of the first byte.
    pub start: usize,
    /// Address after the last byte.
    pub end: usize,
    /// One of enum dirty_reason. Treat a value that you do not know as dirty.
    pub reason: u32,
    /// Zero.
    pub reserved: u32,
}

impl From<&libdirty::Extent> for Extent {
    fn from(extent: &libdirty::Extent) -> Self {
        Extent {
            start: extent.range.start(),
            end: extent.range.end(),
            reason: extent.reason as u32,
            reserved: 0,
        }
    }
}

/// A tracker and what it found.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) tracker: Tracker,
    found: Dirty,
    /// So many of `found` have been read.
    read: usize,
}

impl Session {
    pub(crate) fn new(tracker: Tracker) -> Self {
        Session { tracker, found: Dirty::new(), read: 0 }
    }

    /// Collect or peek by `find`; the number of extents to be read. Refused while some of the last time are unread.
    pub(crate) fn find(
        &mut self,
        find: impl FnOnce(&mut Tracker, &mut Dirty) -> libdirty::Result<()>,
    ) -> Outcome<usize> {
        let unread = self.unread();
        if unread > 0 {
            let why = format!(
                "{unread} extents of the last collect or peek are unread: dirty_read or dirty_discard them"
            );
            return Err(Failure::new(libc::EBUSY, why));
        }
        self.read = 0;
        if let Err(error) = find(&mut self.tracker, &mut self.found) {
            self.found = Dirty::new();
            return Err(error.into());
        }
        Ok(self.unread())
    }

    /// Move the next extents to `out`, which has room for `capacity`; how many.
    ///
    /// # Safety
    /// `out` is aligned and may be written that far.
    pub(crate) unsafe fn read(&mut self, out: *mut Extent, capacity: usize) -> usize {
        let next = &self.found.extents()[self.read..];
        let count = next.len().min(capacity);
        for (index, extent) in next[..count].iter().enumerate() {
            // SAFETY: below `capacity`.
            unsafe { out.add(index).write(extent.into()) };
        }
        self.read += count;
        count
    }

    /// Forget what is unread; how many extents.
    pub(crate) fn discard(&mut self) -> usize {
        let unread = self.unread();
        self.read += unread;
        unread
    }

    fn unread(&self) -> usize {
        self.found.extents().len() - self.read
    }
}
