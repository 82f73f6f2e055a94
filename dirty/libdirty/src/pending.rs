// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was found and is to be reported by a later collect.
//!
//! A collect of a range may find more than it was asked for (see `tracker`), and a peek takes nothing away. What they
//! found waits here for the first collect that covers it.
//!
//! Invariants:
//! - Extents are sorted and do not overlap; each lies in watched ranges.
//! - A page leaves only by [`Pending::take`], which reports it, or by [`Pending::forget`], because it is not watched any
//!   more or will be reported as new.
//! - What is found at an address replaces what was found there before: it is what a copier has to do now. A page that
//!   was discarded and then written is to be copied, one that was written and then unmapped is gone. Of doubt nothing is
//!   lost by that: whatever replaces it has to be copied as well, or was seen to be zeros or gone.

use std::ops::Range;

use crate::extent::{Dirty, Extent, PageRange};

/// Extents that wait. Where a range is asked for, `None` is everything.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    extents: Vec<Extent>,
}

impl Pending {
    pub(crate) fn is_empty(&self, range: Option<PageRange>) -> bool {
        self.within(range).is_empty()
    }

    /// Add what was found after all that is there.
    pub(crate) fn put(&mut self, found: &Dirty) {
        let newer = found.extents();
        let (Some(first), Some(last)) = (newer.first(), newer.last()) else { return };
        let around = self.within(Some(PageRange::trusted(first.range.start(), last.range.end())));
        let mut merged = newer.to_vec();
        for older in &self.extents[around.clone()] {
            let next = newer.partition_point(|extent| extent.range.end() <= older.range.start());
            let over = newer[next..].iter().map(|extent| extent.range);
            let over = over.take_while(|range| range.start() < older.range.end());
            merged.extend(older.range.without(over).into_iter().map(|range| Extent { range, ..*older }));
        }
        merged.sort_unstable_by_key(|extent| extent.range);
        self.extents.splice(around, merged);
    }

    /// Replace the content of `dirty` by what there is within `range`.
    pub(crate) fn copy(&self, range: Option<PageRange>, dirty: &mut Dirty) {
        dirty.clear();
        for extent in &self.extents[self.within(range)] {
            let piece = range.map_or(Some(extent.range), |range| extent.range.intersection(range));
            piece.into_iter().for_each(|piece| dirty.push(piece, extent.reason));
        }
    }

    /// The same, and it does not wait any more.
    pub(crate) fn take(&mut self, range: Option<PageRange>, dirty: &mut Dirty) {
        self.copy(range, dirty);
        self.forget(range);
    }

    /// What there is within `range` does not wait any more.
    pub(crate) fn forget(&mut self, range: Option<PageRange>) {
        let within = self.within(range);
        let cut = self.extents[within.clone()].iter().flat_map(|extent| {
            let left = extent.range.without(range.or(Some(extent.range)));
            left.into_iter().map(|range| Extent { range, ..*extent })
        });
        let cut: Vec<_> = cut.collect();
        self.extents.splice(within, cut);
    }

    /// The numbers of the extents that have pages in `range`.
    fn within(&self, range: Option<PageRange>) -> Range<usize> {
        let Some(range) = range else { return 0..self.extents.len() };
        let first = self.extents.partition_point(|extent| extent.range.end() <= range.start());
        let end = self.extents.partition_point(|extent| extent.range.start() < range.end());
        first..end.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::{Reason, page_size};

    fn range(first: usize, end: usize) -> PageRange {
        PageRange::new(first * page_size(), end * page_size()).unwrap()
    }

    fn found(extents: &[(usize, usize, Reason)]) -> Dirty {
        let mut dirty = Dirty::new();
        extents.iter().for_each(|(first, end, reason)| dirty.push(range(*first, *end), *reason));
        dirty.finish();
        dirty
    }

    #[test]
    fn later_findings_replace_earlier_ones() {
        let mut pending = Pending::default();
        let mut out = Dirty::new();
        pending.put(&found(&[(1, 10, Reason::Discarded), (20, 30, Reason::Written)]));
        pending.put(&found(&[(3, 5, Reason::Written), (8, 25, Reason::Unmapped)]));
        let all = found(&[
            (1, 3, Reason::Discarded),
            (3, 5, Reason::Written),
            (5, 8, Reason::Discarded),
            (8, 25, Reason::Unmapped),
            (25, 30, Reason::Written),
        ]);
        pending.copy(None, &mut out);
        assert_eq!(out, all);
        pending.take(Some(range(4, 9)), &mut out);
        let middle = [(4, 5, Reason::Written), (5, 8, Reason::Discarded), (8, 9, Reason::Unmapped)];
        assert_eq!(out, found(&middle));
        assert!(pending.is_empty(Some(range(4, 9))) && !pending.is_empty(Some(range(4, 10))));
        pending.put(&found(&middle));
        pending.copy(None, &mut out);
        assert_eq!(out, all);
        pending.forget(Some(range(2, 40)));
        pending.take(None, &mut out);
        assert_eq!(out, found(&[(1, 2, Reason::Discarded)]));
        assert!(pending.is_empty(None));
    }

    #[test]
    fn each_page_is_reported_once_by_the_first_that_covers_it() {
        // Against a table with a line for each page.
        let mut pending = Pending::default();
        let mut table = [None; 64];
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 16) as usize % below
        };
        for _ in 0..2000 {
            let first = 1 + next(60);
            let end = first + 1 + next(63 - first);
            let asked = range(first, end);
            let mut out = Dirty::new();
            match next(4) {
                0 => {
                    pending.take(Some(asked), &mut out);
                    let wanted: Vec<_> =
                        (first..end).filter_map(|page| Some((page, table[page].take()?))).collect();
                    assert_eq!(pages(&out), wanted);
                }
                1 => {
                    pending.copy(Some(asked), &mut out);
                    let wanted: Vec<_> = (first..end).filter_map(|page| Some((page, table[page]?))).collect();
                    assert_eq!(pages(&out), wanted);
                }
                _ => {
                    let reasons = [Reason::Written, Reason::Discarded, Reason::NewMapping];
                    for (page, entry) in table.iter_mut().enumerate().take(end).skip(first) {
                        if next(3) > 0 {
                            let reason = reasons[next(3)];
                            out.push(range(page, page + 1), reason);
                            *entry = Some(reason);
                        }
                    }
                    pending.put(&out);
                }
            }
        }
    }

    fn pages(dirty: &Dirty) -> Vec<(usize, Reason)> {
        let page = page_size();
        let each = |extent: &Extent| {
            let (pages, reason) = (extent.range.start() / page..extent.range.end() / page, extent.reason);
            pages.map(move |page| (page, reason))
        };
        dirty.extents().iter().flat_map(each).collect()
    }
}
