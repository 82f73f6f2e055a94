// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages of private memory had content of their own at the last collect, at about a bit for 512 pages.
//!
//! Most blocks of 512 pages have content in all pages or in none. A flag stands for *all*; single bits, in memory
//! that exists only where some are set, are kept for the other blocks.
//!
//! Pages have the numbers that they have in the part's bitmap.

use std::io;

use crate::bitmap::Bitmap;
use crate::content::{Content, Contents};
use crate::extent::PageRange;
use crate::news::News;

const BLOCK: usize = 512;
const BLOCK_WORDS: usize = BLOCK / 64;

/// What was there.
#[derive(Debug)]
pub(super) struct History {
    /// A bit for each block of which every page had content; its bits below mean nothing.
    full: Vec<u64>,
    bits: Bitmap,
}

impl History {
    /// Nothing had content.
    pub(super) fn new(range: PageRange) -> io::Result<Self> {
        let full = vec![0; range.pages().div_ceil(BLOCK).div_ceil(64)];
        Ok(History { full, bits: Bitmap::new(range)? })
    }

    fn is_full(&self, block: usize) -> bool {
        self.full[block / 64] & (1 << (block % 64)) != 0
    }

    fn had(&self, word: usize) -> u64 {
        if self.is_full(word / BLOCK_WORDS) {
            return u64::MAX;
        }
        self.bits.words()[word].load(std::sync::atomic::Ordering::Relaxed)
    }

    fn put(&self, word: usize, mask: u64, own: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let word = &self.bits.words()[word];
        let now = word.load(Relaxed);
        // A word that is as it should be is not written: its page may not exist yet.
        if now & mask != own {
            word.store(now & !mask | own, Relaxed);
        }
    }

    /// Enter which pages of `news` have content now, and add those that changed without a fault: content that is gone,
    /// that came unseen, or that is not knowable.
    pub(super) fn update(&mut self, contents: &Contents, news: &mut News) {
        let mut page = 0;
        let mut own = [0; BLOCK_WORDS];
        let mut masks = [0; BLOCK_WORDS];
        for slot in 0..news.words() {
            let (word, mask) = news.mask(slot);
            let mut unknown = 0;
            let mut now = 0;
            let mut rest = mask;
            while rest != 0 {
                let bit = rest & rest.wrapping_neg();
                match contents.page(page) {
                    Content::Own => now |= bit,
                    Content::Behind => {}
                    Content::Unknown => unknown |= bit,
                }
                rest &= rest - 1;
                page += 1;
            }
            now |= unknown;
            let had = self.had(word) & mask;
            news.add(slot, unknown | had & !now | now & !had);

            own[word % BLOCK_WORDS] = now;
            masks[word % BLOCK_WORDS] = mask;
            if word % BLOCK_WORDS == BLOCK_WORDS - 1 || slot + 1 == news.words() {
                self.store(word / BLOCK_WORDS, &own, &masks);
                (own, masks) = ([0; BLOCK_WORDS], [0; BLOCK_WORDS]);
            }
        }
    }

    fn store(&mut self, block: usize, own: &[u64; BLOCK_WORDS], masks: &[u64; BLOCK_WORDS]) {
        let flag = 1 << (block % 64);
        let first = block * BLOCK_WORDS;
        let words = self.bits.words().len().min(first + BLOCK_WORDS) - first;
        if own[..words].iter().all(|word| *word == u64::MAX) {
            self.full[block / 64] |= flag;
            return;
        }
        if self.is_full(block) {
            let is_untouched = own == masks; // the pages of another piece are in the block, too
            if is_untouched {
                return;
            }
            self.full[block / 64] &= !flag;
            (first..first + words).for_each(|word| self.put(word, u64::MAX, u64::MAX));
        }
        for index in 0..words {
            self.put(first + index, masks[index], own[index]);
        }
    }
}
