// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a collect has found in some pages of a part: a bit a page, laid out like the words of the part's bitmap.

use std::sync::atomic::Ordering;

use crate::bitmap::Bitmap;
use crate::content::Contents;
use crate::extent::{PageRange, page_size};

/// Words for a chunk that begins in the middle of one.
const WORDS: usize = Contents::CHUNK / 64 + 1;

/// `range` in pieces that end where words of `bitmap` do, and that are read at once.
pub(crate) fn chunks(range: PageRange, bitmap: &Bitmap) -> impl Iterator<Item = PageRange> + use<> {
    let size = Contents::CHUNK * page_size();
    let base = bitmap.range().start();
    let mut at = range.start();
    std::iter::from_fn(move || {
        (at < range.end()).then(|| {
            let end = base + ((at - base) / size + 1) * size;
            let chunk = PageRange::trusted(at, end.min(range.end()));
            at = chunk.end();
            chunk
        })
    })
}

/// The news of one chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct News {
    chunk: PageRange,
    /// The numbers of its pages in the part's bitmap.
    first: usize,
    end: usize,
    words: [u64; WORDS],
}

impl News {
    /// None yet.
    pub(crate) fn new(chunk: PageRange, bitmap: &Bitmap) -> Self {
        let first = bitmap.index(chunk.start());
        News { chunk, first, end: first + chunk.pages(), words: [0; WORDS] }
    }

    /// Words in use.
    pub(crate) fn words(&self) -> usize {
        self.end.div_ceil(64) - self.first / 64
    }

    /// The number of a word in the bitmap, and the bits in it that are of the chunk.
    pub(crate) fn mask(&self, slot: usize) -> (usize, u64) {
        let word = self.first / 64 + slot;
        let (from, to) = (self.first.max(word * 64) - word * 64, self.end.min(word * 64 + 64) - word * 64);
        (word, u64::MAX << from & u64::MAX >> (64 - to))
    }

    /// Take the bits of the chunk out of `bitmap`.
    pub(crate) fn take(&mut self, bitmap: &Bitmap) {
        for slot in 0..self.words() {
            let (word, mask) = self.mask(slot);
            let word = &bitmap.words()[word];
            // A word without bits is not written: its page may not exist yet.
            if word.load(Ordering::Acquire) & mask != 0 {
                self.words[slot] |= word.fetch_and(!mask, Ordering::AcqRel) & mask;
            }
        }
    }

    /// Add pages of one word.
    pub(crate) fn add(&mut self, slot: usize, bits: u64) {
        self.words[slot] |= bits;
    }

    /// Keep those pages of one word that are in `bits`; returns the others.
    pub(crate) fn keep(&mut self, slot: usize, bits: u64) -> u64 {
        let others = self.words[slot] & !bits;
        self.words[slot] &= bits;
        others
    }

    /// Add `range`, as far as it is in the chunk; returns what is new of it.
    pub(crate) fn fill(&mut self, range: PageRange) -> Vec<PageRange> {
        let Some(range) = self.chunk.intersection(range) else { return Vec::new() };
        let mut added = News { words: [0; WORDS], ..*self };
        let number = |address: usize| self.first + (address - self.chunk.start()) / page_size();
        for page in number(range.start())..number(range.end()) {
            added.words[page / 64 - self.first / 64] |= 1 << (page % 64);
        }
        for (added, words) in added.words.iter_mut().zip(&mut self.words) {
            *added &= !*words;
            *words |= *added;
        }
        added.runs().collect()
    }

    /// The pages, as runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = PageRange> {
        let base = self.first / 64 * 64;
        let end = self.words() * 64;
        let find = move |from: usize, set: bool| {
            let mut at = from;
            while at < end {
                let word = if set { self.words[at / 64] } else { !self.words[at / 64] };
                let rest = word >> (at % 64);
                if rest != 0 {
                    return (at + rest.trailing_zeros() as usize).min(end);
                }
                at = (at / 64 + 1) * 64;
            }
            end
        };
        let address = move |at: usize| self.chunk.start() + (base + at - self.first) * page_size();
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = find(at, true);
            at = find(start, false);
            (start < at).then(|| PageRange::trusted(address(start), address(at)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_adds_and_reports_runs() {
        let range =
            |first: usize, end: usize| PageRange::new(first * page_size(), end * page_size()).unwrap();
        let bitmap = Bitmap::new(range(1000, 2000)).unwrap();
        for part in [range(1000, 1010), range(1060, 1200), range(1299, 1310)] {
            bitmap.fill(part, true);
        }
        let mut news = News::new(range(1005, 1300), &bitmap);
        news.take(&bitmap);
        let runs: Vec<_> = news.runs().collect();
        assert_eq!(runs, [range(1005, 1010), range(1060, 1200), range(1299, 1300)]);
        assert_eq!(bitmap.all_any(range(1000, 1005)), (true, true));
        assert_eq!(bitmap.all_any(range(1005, 1300)), (false, false));
        assert_eq!(bitmap.all_any(range(1300, 1310)), (true, true));
        assert_eq!(news.fill(range(900, 1062)), [range(1010, 1060)]);
        assert_eq!(news.runs().count(), 2);
    }
}
