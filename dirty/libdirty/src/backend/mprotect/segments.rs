// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of watched pages, sorted and without overlap, in shared blocks of bounded length: a copy of all of them copies
//! one pointer a block, and a change copies the blocks that it touches. So a change of one run among n costs about the
//! square root of n, and the table of before stays whole for those who still read it.
//!
//! Reading allocates nothing and takes no lock: the SIGSEGV handler does it. (That is why this is no tree of a
//! library: their iterators allocate.)

use std::sync::Arc;

use super::registry::Watch;
use crate::extent::PageRange;

/// Who watches a run of pages; neighbours share the list.
pub(super) type Watches = Arc<[Arc<Watch>]>;

/// A run of pages with one protection and the same watches.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) range: PageRange,
    /// What the program gave it: the `PROT_*` bits to give back.
    pub(super) protection: i32,
    pub(super) watches: Watches,
}

/// Segments of a block at most.
const BLOCK: usize = 128;

/// All segments. No block is empty.
#[derive(Debug, Default, Clone)]
pub(super) struct Segments {
    blocks: Vec<Arc<[Segment]>>,
}

impl Segments {
    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.blocks.iter().flat_map(|block| block.iter())
    }

    /// The segment of the byte at `address`.
    pub(super) fn find(&self, address: usize) -> Option<&Segment> {
        self.from(address).next().filter(|segment| segment.range.contains_address(address))
    }

    /// Those that have bytes at or above `address`, in order.
    fn from(&self, address: usize) -> impl Iterator<Item = &Segment> {
        let block = self.first_block(address);
        let within =
            self.blocks.get(block).map_or(0, |block| block.partition_point(|one| one.range.end() <= address));
        self.blocks[block..].iter().flat_map(|block| block.iter()).skip(within)
    }

    /// The first block with a segment that has bytes at or above `address`.
    fn first_block(&self, address: usize) -> usize {
        self.blocks.partition_point(|block| block[block.len() - 1].range.end() <= address)
    }

    /// The pieces of `range` that are in the table, in order.
    pub(super) fn within(&self, range: PageRange) -> impl Iterator<Item = (PageRange, &Segment)> {
        self.from(range.start()).map_while(move |segment| Some((segment.range.intersection(range)?, segment)))
    }

    /// The run of segments around `segment` that follow each other with the same protection.
    pub(super) fn around(&self, segment: &Segment) -> PageRange {
        let is_alike = |other: &&Segment| other.protection == segment.protection;
        let mut end = segment.range.end();
        for next in self.from(end).take_while(is_alike) {
            if next.range.start() != end {
                break;
            }
            end = next.range.end();
        }
        let mut start = segment.range.start();
        while let Some(before) = start.checked_sub(1).and_then(|byte| self.find(byte)).filter(is_alike) {
            start = before.range.start();
        }
        PageRange::trusted(start, end)
    }

    /// Change what is in `range`: segments are cut at its borders, and those inside are replaced by what `change` makes
    /// of them, which need not be sorted.
    pub(super) fn change(&mut self, range: PageRange, change: impl FnOnce(&mut Vec<Segment>)) {
        let first = self.first_block(range.start());
        let count =
            self.blocks[first..].iter().take_while(|block| block[0].range.start() < range.end()).count();
        // With a neighbour, so that small blocks do not become many.
        let blocks = first.saturating_sub(1)..(first + count + 1).min(self.blocks.len());
        let mut all = Vec::new();
        let mut inside = Vec::new();
        for segment in self.blocks[blocks.clone()].iter().flat_map(|block| block.iter()) {
            for rest in segment.range.without([range]) {
                all.push(Segment { range: rest, ..segment.clone() });
            }
            if let Some(piece) = segment.range.intersection(range) {
                inside.push(Segment { range: piece, ..segment.clone() });
            }
        }
        change(&mut inside);
        all.append(&mut inside);
        all.sort_unstable_by_key(|segment| segment.range);
        let count = all.len().div_ceil(BLOCK).max(1);
        let size = all.len().div_ceil(count).max(1);
        self.blocks.splice(blocks, all.chunks(size).map(Arc::from));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extent::page_size;

    fn range(first: usize, end: usize) -> PageRange {
        PageRange::new(first * page_size(), end * page_size()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Against one number a page.
        #[test]
        fn is_like_a_list_of_pages(changes in prop::collection::vec((1usize..2000, 1usize..40, 0i32..4), 1..300)) {
            let mut pages = vec![0; 2100];
            let mut segments = Segments::default();
            for (first, length, protection) in changes {
                let part = range(first, first + length);
                segments.change(part, |inside| {
                    assert!(inside.iter().all(|segment| part.contains(segment.range)));
                    inside.clear();
                    if protection != 0 {
                        inside.push(Segment { range: part, protection, watches: Arc::from([]) });
                    }
                });
                pages[first..first + length].fill(protection);
            }
            for (page, protection) in pages.iter().enumerate() {
                let found = segments.find(page * page_size() + 7);
                prop_assert_eq!(found.map_or(0, |segment| segment.protection), *protection);
            }
            let ranges: Vec<_> = segments.iter().map(|segment| segment.range).collect();
            prop_assert!(ranges.windows(2).all(|two| two[0].end() <= two[1].start()));
            prop_assert!(segments.blocks.iter().all(|block| (1..=BLOCK).contains(&block.len())));
            for segment in segments.iter() {
                let around = segments.around(segment);
                let (first, end) = (around.start() / page_size(), around.end() / page_size());
                prop_assert!(pages[first..end].iter().all(|page| *page == segment.protection));
                prop_assert!(pages[first - 1] != segment.protection && pages[end] != segment.protection);
            }
        }
    }
}
