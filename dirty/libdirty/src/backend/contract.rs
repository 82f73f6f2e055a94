// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every back end does. [`crate::Tracker`] keeps the books (which ranges, what is mapped there); a back end
//! arms memory and reports which pages were written.
//!
//! The promise that each back end keeps for each page: a write that happens after `arm` returned is reported by the
//! first `collect` that begins after it, or by one that runs at the same time. So no write can fall between reporting
//! a page and arming it again; each file says how it does this.

use std::fmt::Debug;
use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::capability::BackendKind;
use crate::extent::{Dirty, PageRange};
use crate::maps::{Mapping, Memory};
use crate::target::Target;

/// Memory under watch: a run of pages that show the same memory.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) range: PageRange,
    pub(crate) memory: Memory,
    /// The back end's one bit a page; it covers `range` and perhaps more (parts are cut, bitmaps are not).
    /// All clear when the part is armed for the first time.
    pub(crate) bitmap: Arc<Bitmap>,
}

/// Where a part was found a moment ago.
pub(crate) struct Place<'a> {
    /// Its mappings.
    pub(crate) mappings: &'a [Mapping],
    /// What may be watched with it, the largest first: see [`crate::room`].
    pub(crate) rooms: [PageRange; 2],
}

/// The outcome of arming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Armed {
    /// Writes are found from now on.
    Watched,
    /// The process can never write here: there is nothing to find.
    Constant,
    /// This mapping cannot be watched.
    Unsupported,
}

/// What a collect works on.
pub(crate) struct Collection<'a> {
    /// The parts to look at, sorted; each mapped a moment ago.
    pub(crate) parts: &'a [Part],
    /// These are all that are watched. If not ([`Backend::collects_some`]), nothing may be taken of what concerns others,
    /// and each may be a piece of what was armed.
    pub(crate) is_all: bool,
    /// The same with protections, as seen a moment ago.
    pub(crate) mappings: &'a [Mapping],
    /// Where the mappings were looked for.
    pub(crate) limits: &'a [PageRange],
    /// Where dirty pages go, in any order.
    pub(crate) dirty: &'a mut Dirty,
    /// Ranges that turned out not to be armed (any more): the tracker arms them anew and reports them whole.
    pub(crate) lost: &'a mut Vec<PageRange>,
}

/// A mechanism at work on one process.
pub(crate) trait Backend: Send + Debug {
    fn kind(&self) -> BackendKind;

    /// Find writes to `part` from now on; what it holds now is known to the caller.
    fn arm(&mut self, target: &Target, part: &Part, place: &Place<'_>) -> Armed;

    /// Called after one or more `arm`: what is written from now on must be found. For back ends that do better to
    /// arm all at once.
    fn settle(&mut self, _target: &Target) {}

    /// Called before `arm` of all the memory of these mappings; it may watch what is free above each, up to `end`.
    fn enclose(&mut self, _mappings: &[Mapping], _end: usize) {}

    /// Called before `disarm` of all that is watched of the same, of which nothing is watched afterwards.
    fn release(&mut self, _mappings: &[Mapping], _end: usize) {}

    /// Leave `range`, a part or a piece of one, as if it had never been watched. `mapped`: whether the memory is still
    /// there; if not, only the back end's own records are removed.
    fn disarm(&mut self, target: &Target, range: PageRange, mapped: bool);

    /// Whether a collect can look at `parts` alone, now: some of what is watched, none of it armed since the last
    /// collect.
    fn collects_some(&self, _parts: &[Part]) -> bool {
        false
    }

    /// Report the pages written since the last collect, and arm them again.
    fn collect(&mut self, target: &Target, work: &mut Collection<'_>);
}
