// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One bit a page, set by a handler, taken by a collect.

use std::sync::atomic::{AtomicU64, Ordering};

use libdirty::{PageRange, page_size};

/// Bits for the pages of a range.
#[derive(Debug)]
pub(super) struct Bits {
    range: PageRange,
    words: Vec<AtomicU64>,
}

impl Bits {
    pub(super) fn new(range: PageRange) -> Self {
        Bits { range, words: (0..range.pages().div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn range(&self) -> PageRange {
        self.range
    }

    /// Set the bit of the page at `address`. Safe in a signal handler.
    pub(super) fn set(&self, address: usize) {
        let page = (address - self.range.start()) / page_size();
        self.words[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
    }

    /// Move every bit into `runs`.
    pub(super) fn take(&self, runs: &mut Runs) {
        for (index, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let first = bits.trailing_zeros() as usize;
                let count = (bits >> first).trailing_ones() as usize;
                let at = self.range.start() + (index * 64 + first) * page_size();
                runs.push(at, at + count * page_size());
                bits &= !((u64::MAX >> (64 - count)) << first);
            }
        }
    }
}

/// A list of page ranges in order, neighbours joined; its memory is reused.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<(usize, usize)>);

impl Runs {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, start: usize, end: usize) {
        match self.0.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => self.0.push((start, end)),
        }
    }

    pub(super) fn ranges(&self) -> Vec<PageRange> {
        self.0
            .iter()
            .map(|&(start, end)| PageRange::new(start, end).expect("whole pages, in order"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_across_words() {
        let page = page_size();
        let bits = Bits::new(PageRange::new(100 * page, 300 * page).unwrap());
        for n in (160..240).chain([299]) {
            bits.set(n * page);
        }
        let mut runs = Runs::default();
        bits.take(&mut runs);
        assert_eq!(runs.0, [(160 * page, 240 * page), (299 * page, 300 * page)]);
        runs.clear();
        bits.take(&mut runs);
        assert_eq!(runs.0, []);
    }
}
