// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One bit a page, over a range; of a large range, in memory that the kernel gives only where bits are set.
//!
//! A set bit means that the caller's copy of the page may be other than zeros: the page had content at the last
//! collect, or was reported to be copied. (In the `mprotect` back end it means *written*.) Memory that was armed after
//! the last collect is *fresh*: it is not known when the caller copies it, so each of its pages counts as if its bit
//! were set.
//!
//! A summary, with a bit for each group of 512 pages, allows to skip memory that was never touched. [`Bitmap::put`] and
//! [`Bitmap::fill`] update it; code that changes the words directly does not, and must not use it.
//!
//! Words are atomic because the SIGSEGV handler of one back end sets bits while a collect takes them; the order that
//! this needs is explained there. Nothing here allocates after [`Bitmap::new`].

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::extent::{PageRange, page_size};
use crate::private::Words;

/// Bits for the pages of `range`, all clear at first.
#[derive(Debug)]
pub(crate) struct Bitmap {
    range: PageRange,
    words: Words,
    count: usize,
    fresh: AtomicBool,
}

/// Words of a group of the summary.
const GROUP: usize = 8;

impl Bitmap {
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn new(range: PageRange) -> io::Result<Self> {
        let count = range.pages().div_ceil(64);
        let words = Words::new(count + count.div_ceil(GROUP).div_ceil(64))?;
        Ok(Bitmap { range, words, count, fresh: AtomicBool::new(false) })
    }

    /// Whether no collect has looked at the pages since they were armed.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }

    pub(crate) fn set_fresh(&self, fresh: bool) {
        self.fresh.store(fresh, Ordering::Relaxed);
    }

    /// The pages it stands for.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// The words, page 0 of the range being bit 0 of word 0.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words that live as long as this value; all access to them is atomic.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.count) }
    }

    fn summary(&self) -> &[AtomicU64] {
        // SAFETY: they follow the others, and live as long.
        unsafe {
            let first = self.words.as_ptr().cast::<AtomicU64>().add(self.count);
            std::slice::from_raw_parts(first, self.count.div_ceil(GROUP).div_ceil(64))
        }
    }

    fn note(&self, word: usize) {
        let group = word / GROUP;
        let (word, bit) = (&self.summary()[group / 64], 1 << (group % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Where in `part` bits are set: pieces of at most 512 pages, in order.
    pub(crate) fn set_within(&self, part: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let (mut group, end) =
            (self.index(part.start()) / 64 / GROUP, (self.index(part.end() - 1) / 64 / GROUP) + 1);
        let size = GROUP * 64 * page_size();
        std::iter::from_fn(move || {
            while group < end {
                let rest = self.summary()[group / 64].load(Ordering::Relaxed) >> (group % 64);
                if rest == 0 {
                    group = (group / 64 + 1) * 64;
                    continue;
                }
                let found = group + rest.trailing_zeros() as usize;
                group = found + 1;
                let words = &self.words()[found * GROUP..self.count.min((found + 1) * GROUP)];
                if words.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                    continue;
                }
                let start = self.range.start() + found * size;
                let piece = PageRange::trusted(start, (start + size).min(self.range.end()));
                if let Some(piece) = piece.intersection(part) {
                    return Some(piece);
                }
            }
            None
        })
    }

    /// The index of a page of the range.
    pub(crate) fn index(&self, address: usize) -> usize {
        debug_assert!(self.range.start() <= address && address < self.range.end());
        (address - self.range.start()) / page_size()
    }

    pub(crate) fn get(&self, index: usize) -> bool {
        self.words()[index / 64].load(Ordering::Relaxed) & (1 << (index % 64)) != 0
    }

    pub(crate) fn put(&self, index: usize, set: bool) {
        let bit = 1 << (index % 64);
        let word = &self.words()[index / 64];
        if set {
            word.fetch_or(bit, Ordering::Relaxed);
            self.note(index / 64);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Set or clear the bits of `part`, which lies in the range.
    pub(crate) fn fill(&self, part: PageRange, set: bool) {
        self.each_word(part, |index, mask| {
            let word = &self.words()[index];
            // A word that is as it should be is not written: its page may not exist yet.
            let now = word.load(Ordering::Relaxed);
            if set && now & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
                self.note(index);
            } else if !set && now & mask != 0 {
                word.fetch_and(!mask, Ordering::Relaxed);
            }
        });
    }

    /// Whether every bit of `part` is set; whether any is.
    pub(crate) fn all_any(&self, part: PageRange) -> (bool, bool) {
        let (mut all, mut any) = (true, false);
        self.each_word(part, |word, mask| {
            let now = self.words()[word].load(Ordering::Relaxed) & mask;
            all &= now == mask;
            any |= now != 0;
        });
        (all, any)
    }

    /// The runs of pages of `part` whose bits are set, or are clear.
    pub(crate) fn runs(&self, part: PageRange, set: bool) -> impl Iterator<Item = PageRange> + '_ {
        let (mut at, end) = (self.index(part.start()), self.index(part.end() - 1) + 1);
        let find = move |from: usize, set: bool| {
            let mut at = from;
            while at < end {
                let word = self.words()[at / 64].load(Ordering::Relaxed);
                let rest = if set { word } else { !word } >> (at % 64);
                if rest != 0 {
                    return (at + rest.trailing_zeros() as usize).min(end);
                }
                at = (at / 64 + 1) * 64;
            }
            end
        };
        let address = |at: usize| self.range.start() + at * page_size();
        std::iter::from_fn(move || {
            let start = find(at, set);
            at = find(start, !set);
            (start < at).then(|| PageRange::trusted(address(start), address(at)))
        })
    }

    fn each_word(&self, part: PageRange, mut visit: impl FnMut(usize, u64)) {
        let (mut first, end) = (self.index(part.start()), self.index(part.end() - 1) + 1);
        while first < end {
            let bits = (64 - first % 64).min(end - first);
            let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << (first % 64) };
            visit(first / 64, mask);
            first += bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_and_reports_parts() {
        let page = page_size();
        let range = |first, end| PageRange::new(first * page, end * page).unwrap();
        let bitmap = Bitmap::new(range(100, 400)).unwrap();
        bitmap.fill(range(163, 230), true);
        assert_eq!(bitmap.all_any(range(163, 230)), (true, true));
        assert_eq!(bitmap.all_any(range(162, 230)), (false, true));
        assert_eq!(bitmap.all_any(range(230, 400)), (false, false));
        assert_eq!(bitmap.runs(range(150, 300), true).collect::<Vec<_>>(), [range(163, 230)]);
        assert_eq!(
            bitmap.runs(range(150, 400), false).collect::<Vec<_>>(),
            [range(150, 163), range(230, 400)]
        );
        assert_eq!(bitmap.runs(range(170, 180), true).collect::<Vec<_>>(), [range(170, 180)]);
        assert_eq!(bitmap.runs(range(170, 180), false).count(), 0);
        bitmap.fill(range(163, 229), false);
        assert!(bitmap.get(129) && !bitmap.get(128));
        bitmap.put(129, false);
        assert_eq!(bitmap.all_any(range(100, 400)), (false, false));
    }

    #[test]
    fn leads_to_what_is_set() {
        let page = page_size();
        let range = |first, end| PageRange::new(first * page, end * page).unwrap();
        let bitmap = Bitmap::new(range(100, 1 << 20)).unwrap();
        assert_eq!(bitmap.set_within(range(100, 1 << 20)).count(), 0);
        bitmap.put(5, true);
        bitmap.fill(range(100 + 1000, 100 + 1030), true);
        let pieces = [range(100, 612), range(612, 1124), range(1124, 1636)];
        assert_eq!(bitmap.set_within(range(100, 1 << 20)).collect::<Vec<_>>(), pieces);
        assert_eq!(bitmap.set_within(range(620, 630)).collect::<Vec<_>>(), [range(620, 630)]);
        bitmap.put(5, false);
        assert_eq!(bitmap.set_within(range(100, 1 << 20)).collect::<Vec<_>>(), pieces[1..]);
    }
}
