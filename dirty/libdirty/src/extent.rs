// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges of pages, and the list of them that a collect returns.

use std::fmt;

use crate::error::{Error, Result};

/// Bytes in a page.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("a page has a size")
}

/// A non-empty range of whole pages, in bytes: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    start: usize,
    end: usize,
}

/// The end of user space where it is largest (x86-64 with five levels of page tables; arm64 with 52 bits).
const USER_END: usize = if cfg!(target_arch = "x86_64") { (1 << 56) - (1 << 16) } else { 1 << 52 };

impl PageRange {
    /// `start..end`, both in bytes.
    ///
    /// # Errors
    /// [`Error::BadRange`] when empty, not on page boundaries, or outside of user space.
    pub fn new(start: usize, end: usize) -> Result<Self> {
        let bad = |why| Err(Error::BadRange { start, end, why });
        if start >= end {
            return bad("it is empty");
        }
        if (start | end) & (page_size() - 1) != 0 {
            return bad("it does not begin and end on page boundaries");
        }
        if end > USER_END {
            return bad("it lies outside of user space");
        }
        Ok(PageRange { start, end })
    }

    /// `length` bytes from `start`.
    ///
    /// # Errors
    /// As [`PageRange::new`].
    pub fn from_length(start: usize, length: usize) -> Result<Self> {
        let end = start.checked_add(length).ok_or(Error::BadRange {
            start,
            end: usize::MAX,
            why: "its end overflows",
        })?;
        PageRange::new(start, end)
    }

    /// All of user space.
    #[must_use]
    pub fn everything() -> Self {
        PageRange { start: page_size(), end: USER_END }
    }

    /// For addresses that came from the kernel or from another range, aligned and in order.
    pub(crate) fn trusted(start: usize, end: usize) -> Self {
        debug_assert!(start < end && (start | end) & (page_size() - 1) == 0);
        PageRange { start, end }
    }

    /// First address.
    #[must_use]
    pub fn start(self) -> usize {
        self.start
    }

    /// Address after the last.
    #[must_use]
    pub fn end(self) -> usize {
        self.end
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a range is never empty
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Pages.
    #[must_use]
    pub fn pages(self) -> usize {
        self.len() / page_size()
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(self, other: PageRange) -> Option<PageRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(PageRange { start, end })
    }

    /// Whether `other` lies within.
    #[must_use]
    pub fn contains(self, other: PageRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the byte at `address` lies within.
    #[must_use]
    pub fn contains_address(self, address: usize) -> bool {
        self.start <= address && address < self.end
    }

    /// Pieces of so many pages; the last may have fewer.
    pub(crate) fn split(self, pages: usize) -> impl Iterator<Item = PageRange> {
        let size = pages * page_size();
        (self.start..self.end)
            .step_by(size)
            .map(move |start| PageRange { start, end: start.saturating_add(size).min(self.end) })
    }

    /// What is left of `self` when `holes`, sorted, are taken out.
    pub(crate) fn without(self, holes: impl IntoIterator<Item = PageRange>) -> Vec<PageRange> {
        let mut left = Vec::new();
        let mut at = self.start;
        for hole in holes.into_iter().filter_map(|hole| hole.intersection(self)) {
            if at < hole.start {
                left.push(PageRange { start: at, end: hole.start });
            }
            at = at.max(hole.end);
        }
        if at < self.end {
            left.push(PageRange { start: at, end: self.end });
        }
        left
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// Why an extent is reported. All but [`Reason::Written`] and [`Reason::Discarded`] mean doubt: treat every page of it
/// as dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Reason {
    /// Each page was written (or discarded, where the back end cannot distinguish the two) since the last collect.
    Written = 0,
    /// Something is mapped where nothing was, or something else than before.
    NewMapping = 1,
    /// Nothing is mapped here any more: there is nothing to copy. Reported once.
    Unmapped = 2,
    /// The back end cannot track this mapping now; reported by every collect until it can.
    Unsupported = 3,
    /// A resource ran out (a buffer, `vm.max_map_count`), and writes went untracked.
    Overflow = 4,
    /// The tracked program changed the protection that tracking relies on.
    ProtectionChanged = 5,
    /// The back end had to stop the threads of the process for a moment, and could not.
    NotStopped = 6,
    /// The process called `execve`: it has a new address space. Reported once.
    Exec = 7,
    /// The process ended. Reported once.
    Exited = 8,
    /// Each page reads as zeros, and may have read otherwise when it was last reported or watched: it was given back
    /// (`MADV_DONTNEED`, `malloc_trim`, a hole). There is nothing to copy: put zeros, or a hole, into the copy, even if
    /// you read something else there by now. A later write is reported by a later collect. The first collect after
    /// memory was watched reports all of its empty pages.
    Discarded = 9,
}

impl Reason {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Reason::Written => "written",
            Reason::NewMapping => "new mapping: all dirty",
            Reason::Unmapped => "unmapped: nothing left to copy",
            Reason::Unsupported => "cannot be tracked now: all dirty",
            Reason::Overflow => "a resource ran out: all dirty",
            Reason::ProtectionChanged => "protection changed by the program: all dirty",
            Reason::NotStopped => "threads could not be stopped: all dirty",
            Reason::Exec => "the process called execve: all gone",
            Reason::Exited => "the process ended: all gone",
            Reason::Discarded => "discarded: reads as zeros, nothing to copy",
        }
    }

    /// Whether the pages are still there to be read.
    #[must_use]
    pub const fn is_mapped(self) -> bool {
        !matches!(self, Reason::Unmapped | Reason::Exec | Reason::Exited)
    }

    /// Whether the pages are to be zeros in the copy, even if something else can be read there by now.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        matches!(self, Reason::Discarded)
    }

    /// Of two reasons at one address the heavier is reported: a doubtful one before a certain one, and *discarded*,
    /// which came later, before *written*.
    fn weight(self) -> u32 {
        match self {
            Reason::Written => 0,
            Reason::Discarded => 1,
            doubt => doubt as u32 + 1,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// Pages reported dirty, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The pages.
    pub range: PageRange,
    /// Why.
    pub reason: Reason,
}

/// What a collect found: sorted, without overlap, neighbours of one reason joined.
///
/// Keep it and pass it again: the memory is reused.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Dirty {
    extents: Vec<Extent>,
    sorted: bool,
}

impl Dirty {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The extents in order of addresses.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        debug_assert!(self.sorted || self.extents.is_empty());
        &self.extents
    }

    /// Extents whose pages are mapped and can be read. For those that are zero now ([`Reason::Discarded`]) put zeros
    /// into the copy instead: content that you read may have been written since, and may be discarded again before the
    /// next collect, which then does not report it.
    pub fn mapped(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.extents().iter().filter(|extent| extent.reason.is_mapped()).map(|extent| extent.range)
    }

    /// Extents whose pages are to be copied.
    pub fn to_copy(&self) -> impl Iterator<Item = PageRange> + '_ {
        let is_content = |reason: Reason| reason.is_mapped() && !reason.is_zero();
        self.extents().iter().filter(move |extent| is_content(extent.reason)).map(|extent| extent.range)
    }

    /// Extents whose pages are to be zeros in the copy.
    pub fn zeros(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.extents().iter().filter(|extent| extent.reason.is_zero()).map(|extent| extent.range)
    }

    /// Pages in all extents that are to be copied.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.to_copy().map(PageRange::pages).sum()
    }

    /// Whether nothing was reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Whether all of it is in `range`.
    pub(crate) fn lies_in(&self, range: PageRange) -> bool {
        let ends = (self.extents.first(), self.extents.last());
        let (Some(first), Some(last)) = ends else { return true };
        range.contains(first.range) && range.contains(last.range)
    }

    pub(crate) fn clear(&mut self) {
        self.extents.clear();
        self.sorted = true;
    }

    /// Add pages; joined with the last extent when they follow it for the same reason.
    pub(crate) fn push(&mut self, range: PageRange, reason: Reason) {
        if let Some(last) = self.extents.last_mut() {
            if last.reason == reason && last.range.end == range.start {
                last.range.end = range.end;
                return;
            }
            if range.start < last.range.end {
                self.sorted = false;
            }
        } else {
            self.sorted = true;
        }
        self.extents.push(Extent { range, reason });
    }

    /// Sort, and where extents overlap keep the heavier reason.
    pub(crate) fn finish(&mut self) {
        if self.sorted {
            return;
        }
        // Ties are one extent.
        let mut pending = std::mem::take(&mut self.extents);
        pending.sort_unstable();
        let mut pending: std::collections::BinaryHeap<_> =
            pending.into_iter().map(std::cmp::Reverse).collect();
        self.sorted = true;
        while let Some(std::cmp::Reverse(mut first)) = pending.pop() {
            while let Some(std::cmp::Reverse(next)) = pending.peek().copied() {
                if next.range.start >= first.range.end {
                    break;
                }
                pending.pop();
                if next.reason.weight() <= first.reason.weight() {
                    if next.range.end > first.range.end {
                        let rest = PageRange { start: first.range.end, end: next.range.end };
                        pending.push(std::cmp::Reverse(Extent { range: rest, reason: next.reason }));
                    }
                } else {
                    if next.range.end < first.range.end {
                        let rest = PageRange { start: next.range.end, end: first.range.end };
                        pending.push(std::cmp::Reverse(Extent { range: rest, reason: first.reason }));
                    }
                    pending.push(std::cmp::Reverse(next));
                    first.range.end = next.range.start;
                    break;
                }
            }
            if first.range.start < first.range.end {
                self.push(first.range, first.reason);
            }
        }
    }
}

impl<'a> IntoIterator for &'a Dirty {
    type Item = &'a Extent;
    type IntoIter = std::slice::Iter<'a, Extent>;

    fn into_iter(self) -> Self::IntoIter {
        self.extents().iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: usize, end: usize) -> PageRange {
        PageRange::new(first * page_size(), end * page_size()).unwrap()
    }

    #[test]
    fn refuses_what_is_no_range() {
        let page = page_size();
        for (start, end) in
            [(page, page), (2 * page, page), (1, page), (page, page + 1), (page, usize::MAX & !(page - 1))]
        {
            assert!(
                matches!(PageRange::new(start, end), Err(Error::BadRange { .. })),
                "{start:#x}..{end:#x}"
            );
        }
        assert!(PageRange::from_length(page, usize::MAX).is_err());
    }

    #[test]
    fn takes_holes_out() {
        assert_eq!(range(1, 9).without([range(0, 2), range(4, 5)]), [range(2, 4), range(5, 9)]);
        assert_eq!(range(1, 3).without([range(0, 9)]), []);
    }

    #[test]
    fn joins_neighbours_of_one_reason() {
        let mut dirty = Dirty::new();
        dirty.push(range(1, 2), Reason::Written);
        dirty.push(range(2, 3), Reason::Written);
        dirty.push(range(3, 4), Reason::NewMapping);
        dirty.finish();
        assert_eq!(dirty.extents().len(), 2);
        assert_eq!(dirty.pages(), 3);
    }

    #[test]
    fn doubt_wins_where_extents_overlap() {
        let mut dirty = Dirty::new();
        dirty.push(range(1, 10), Reason::Written);
        dirty.push(range(3, 5), Reason::Unsupported);
        dirty.push(range(4, 12), Reason::NewMapping);
        dirty.finish();
        let reported: Vec<_> = dirty.extents().iter().map(|e| (e.range, e.reason)).collect();
        assert_eq!(
            reported,
            [
                (range(1, 3), Reason::Written),
                (range(3, 5), Reason::Unsupported),
                (range(5, 12), Reason::NewMapping),
            ]
        );
    }

    #[test]
    fn what_was_discarded_is_zeros_and_not_copied() {
        let mut dirty = Dirty::new();
        dirty.push(range(1, 10), Reason::Written);
        dirty.push(range(2, 6), Reason::Discarded);
        dirty.push(range(5, 7), Reason::NewMapping);
        dirty.finish();
        assert_eq!(dirty.to_copy().collect::<Vec<_>>(), [range(1, 2), range(5, 7), range(7, 10)]);
        assert_eq!(dirty.zeros().collect::<Vec<_>>(), [range(2, 5)]);
        assert_eq!((dirty.pages(), dirty.mapped().count()), (6, 4));
    }
}
