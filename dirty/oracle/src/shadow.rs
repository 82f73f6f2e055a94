// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copy of the watched memory: what a client that believes every collect would have.
//!
//! Invariant: a page is *known*, with its content, or not known at all. It costs memory only where content other
//! than zero was once put, so that 10 GiB of sparse address space cost next to nothing.

use std::collections::BTreeMap;

use libdirty::{PageRange, page_size};

const PAGES: usize = 64; // to a chunk

/// A copy of pages, by address.
#[derive(Debug, Default)]
pub struct Shadow {
    chunks: BTreeMap<usize, Chunk>,
}

#[derive(Debug, Default)]
struct Chunk {
    known: u64,
    /// Pages that are not zero; empty, or one entry a page.
    content: Vec<Option<Box<[u8]>>>,
}

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// Only zeros.
    Zero,
    /// These bytes.
    Bytes(&'a [u8]),
}

impl Content<'_> {
    /// Whether both hold the same bytes.
    #[must_use]
    pub fn is_same(self, other: Content<'_>) -> bool {
        let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        match (self, other) {
            (Content::Zero, Content::Zero) => true,
            (Content::Bytes(one), Content::Bytes(two)) => one == two,
            (Content::Bytes(bytes), Content::Zero) | (Content::Zero, Content::Bytes(bytes)) => zero(bytes),
        }
    }
}

impl Shadow {
    /// Note what the page at `address` holds.
    pub fn set(&mut self, address: usize, content: Content<'_>) {
        let (chunk, page) = place(address);
        let chunk = self.chunks.entry(chunk).or_default();
        chunk.known |= 1 << page;
        match content {
            Content::Zero => {
                if let Some(old) = chunk.content.get_mut(page) {
                    *old = None;
                }
            }
            Content::Bytes(bytes) => {
                chunk.content.resize(PAGES, None);
                match &mut chunk.content[page] {
                    Some(old) => old.copy_from_slice(bytes),
                    old => *old = Some(bytes.into()),
                }
            }
        }
    }

    /// Note that the pages of `range` hold zeros.
    pub fn clear(&mut self, range: PageRange) {
        let mut at = range.start();
        while at < range.end() {
            let (number, first) = place(at);
            let last = (first + (range.end() - at) / page_size()).min(PAGES);
            let chunk = self.chunks.entry(number).or_default();
            for page in first..last {
                chunk.known |= 1 << page;
                if let Some(old) = chunk.content.get_mut(page) {
                    *old = None;
                }
            }
            at += (last - first) * page_size();
        }
    }

    /// What the page at `address` holds, if that is known.
    #[must_use]
    pub fn get(&self, address: usize) -> Option<Content<'_>> {
        let (chunk, page) = place(address);
        let chunk = self.chunks.get(&chunk)?;
        if chunk.known & (1 << page) == 0 {
            return None;
        }
        Some(match chunk.content.get(page) {
            Some(Some(bytes)) => Content::Bytes(bytes),
            _ => Content::Zero,
        })
    }

    /// Forget the pages of `range`; returns how many were known.
    pub fn forget(&mut self, range: PageRange) -> usize {
        let (first, last) = (place(range.start()).0, place(range.end() - 1).0);
        let mut forgotten = 0;
        for (number, chunk) in self.chunks.range_mut(first..=last) {
            for page in 0..PAGES {
                let address = (number * PAGES + page) * page_size();
                if range.contains_address(address) && chunk.known & (1 << page) != 0 {
                    chunk.known &= !(1 << page);
                    forgotten += 1;
                }
            }
        }
        forgotten
    }
}

fn place(address: usize) -> (usize, usize) {
    let page = address / page_size();
    (page / PAGES, page % PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_was_written() {
        let page = page_size();
        let full = vec![7; page];
        let mut shadow = Shadow::default();
        assert_eq!(shadow.get(65 * page), None);
        shadow.set(65 * page, Content::Zero);
        shadow.set(63 * page, Content::Bytes(&full));
        assert!(shadow.get(65 * page).unwrap().is_same(Content::Zero));
        assert!(shadow.get(63 * page).unwrap().is_same(Content::Bytes(&full)));
        assert!(!shadow.get(63 * page).unwrap().is_same(Content::Zero));
        assert_eq!(shadow.forget(PageRange::new(page, 65 * page).unwrap()), 1);
        assert_eq!(shadow.get(63 * page), None);
        shadow.set(70 * page, Content::Bytes(&full));
        shadow.clear(PageRange::new(60 * page, 200 * page).unwrap());
        assert!(shadow.get(70 * page).unwrap().is_same(Content::Zero));
        assert!(shadow.get(199 * page).is_some() && shadow.get(200 * page).is_none());
        shadow.set(63 * page, Content::Zero);
        assert!(shadow.get(63 * page).unwrap().is_same(Content::Zero), "old content must not come back");
    }
}
