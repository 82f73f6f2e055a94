// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the pages of private memory have content of their own.
//!
//! A page of private memory has either what its process wrote there, its *own* content, or what backs the mapping:
//! zeros, or a file. Own content that is gone was discarded (`MADV_DONTNEED` and the like, or memory mapped anew); no
//! write shows that. A page without own content that had none before reads the same both times.
//!
//! The entry of `/proc/PID/pagemap` leaves one case open: a page that is in memory, not of a file, and mapped more than
//! once is either the kernel's page of zeros, or own content shared with a forked child. The page of zeros is
//! recognised by its frame number (visible with CAP_SYS_ADMIN), or else by `PAGEMAP_SCAN` (Linux 6.7). Without either
//! the answer is [`Content::Unknown`], and the page is reported. (The kernel's *huge* page of zeros has an entry like a
//! file's.)
//!
//! Nothing here allocates after [`Contents::new`].

use std::io;

use linux_raw_sys::general::{PAGE_IS_FILE, PAGE_IS_PFNZERO, PAGE_IS_SWAPPED};

use crate::extent::{PageRange, page_size};
use crate::maps::Memory;
use crate::pagemap::{self, Entry, Regions, Scan};
use crate::scratch::Scratch;
use crate::target::Target;

/// What a page of private memory shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// What the process wrote there.
    Own,
    /// What is behind the mapping.
    Behind,
    /// One or the other.
    Unknown,
}

/// How the page of zeros is distinguished from a page shared with a forked child.
#[derive(Debug, Clone, Copy)]
enum Zeros {
    Frame(u64),
    Scan,
    Unknown,
}

/// Reads and judges pages, [`Contents::CHUNK`] of them at a time.
#[derive(Debug)]
pub(crate) struct Contents {
    zeros: Zeros,
    /// Where the kernel has `PAGEMAP_SCAN`.
    regions: Option<Regions>,
    entries: Vec<Entry>,
    /// A bit for each entry that is known to be of the page of zeros.
    zero: [u64; Contents::CHUNK / 64],
}

impl Contents {
    /// Pages that are read at once: 64 KiB of entries.
    pub(crate) const CHUNK: usize = 8192;

    pub(crate) fn new(target: &Target) -> Self {
        let regions = pagemap::can_scan(target.pagemap()).then(Regions::default);
        let zeros = match zero_frame() {
            Some(frame) => Zeros::Frame(frame),
            None if regions.is_some() => Zeros::Scan,
            None => Zeros::Unknown,
        };
        Contents {
            zeros,
            regions,
            entries: vec![Entry::default(); Self::CHUNK],
            zero: [0; Contents::CHUNK / 64],
        }
    }

    /// Read the pages of `chunk`, at most [`Contents::CHUNK`].
    ///
    /// # Errors
    /// When the pages cannot be read: the memory is gone.
    pub(crate) fn read(&mut self, target: &Target, chunk: PageRange) -> io::Result<()> {
        let entries = &mut self.entries[..chunk.pages()];
        pagemap::read_into(target.pagemap(), chunk.start(), entries)?;
        if let (Zeros::Scan, Some(regions)) = (self.zeros, &mut self.regions) {
            if !entries.iter().any(|entry| is_zero_or_shared(*entry)) {
                return Ok(());
            }
            self.zero.fill(0);
            let what = Scan { all: PAGE_IS_PFNZERO, ..Scan::default() };
            let zero = &mut self.zero;
            pagemap::scan(target.pagemap(), chunk, what, regions, |found, _| {
                let first = (found.start() - chunk.start()) / page_size();
                (first..first + found.pages()).for_each(|index| zero[index / 64] |= 1 << (index % 64));
            })?;
        }
        Ok(())
    }

    /// Find the pages of private memory that have content of their own, or may have: `found` gets each run of one answer,
    /// in order, never [`Content::Behind`]. Costs little for runs of a page table's length, and nothing for memory that
    /// was never touched, where the kernel has `PAGEMAP_SCAN`.
    ///
    /// # Errors
    /// When the pages cannot be read: the memory is gone. `found` may have got some of them.
    pub(crate) fn runs(
        &mut self,
        target: &Target,
        range: PageRange,
        memory: Memory,
        mut found: impl FnMut(PageRange, Content),
    ) -> io::Result<()> {
        if let Some(regions) = &mut self.regions {
            // For the page of a file the kernel looks at each page's descriptor: most of the time of a scan.
            let file = if memory.is_private_anonymous() { 0 } else { PAGE_IS_FILE | PAGE_IS_SWAPPED };
            let what = Scan { report: PAGE_IS_PFNZERO | file, ..Scan::CONTENT };
            return pagemap::scan(target.pagemap(), range, what, regions, |run, categories| {
                if categories & PAGE_IS_SWAPPED != 0 || categories & (PAGE_IS_PFNZERO | PAGE_IS_FILE) == 0 {
                    found(run, Content::Own);
                }
            });
        }
        for chunk in range.split(Self::CHUNK) {
            self.read(target, chunk)?;
            let page = |index: usize| chunk.start() + index * page_size();
            let mut index = 0;
            while index < chunk.pages() {
                let (first, content) = (index, self.page(index));
                while index < chunk.pages() && self.page(index) == content {
                    index += 1;
                }
                if content != Content::Behind {
                    found(PageRange::trusted(page(first), page(index)), content);
                }
            }
        }
        Ok(())
    }

    /// The entry of page `index` of the chunk.
    pub(crate) fn entry(&self, index: usize) -> Entry {
        self.entries[index]
    }

    /// What page `index` of the chunk, of private memory, shows.
    pub(crate) fn page(&self, index: usize) -> Content {
        let entry = self.entries[index];
        if entry.is_swapped() {
            return Content::Own;
        }
        if !entry.is_present() || entry.is_file() {
            return Content::Behind;
        }
        if !is_zero_or_shared(entry) {
            return Content::Own;
        }
        let is_zero = match self.zeros {
            Zeros::Frame(frame) => frame_of(entry) == frame,
            Zeros::Scan => self.zero[index / 64] & (1 << (index % 64)) != 0,
            Zeros::Unknown => return Content::Unknown,
        };
        if is_zero { Content::Behind } else { Content::Own }
    }
}

fn is_zero_or_shared(entry: Entry) -> bool {
    entry.is_present() && !entry.is_file() && !entry.is_exclusive()
}

fn frame_of(entry: Entry) -> u64 {
    entry.0 & ((1 << 55) - 1)
}

/// The frame number of the page of zeros: that of a page which was only read. `None` where frame numbers are
/// hidden, and on machines that may have more than one such page.
fn zero_frame() -> Option<u64> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return None;
    }
    let pagemap = std::fs::File::open("/proc/self/pagemap").ok()?;
    let scratch = Scratch::new(1).ok()?;
    scratch.read(0);
    let mut entry = [Entry::default()];
    pagemap::read_into(&pagemap, scratch.range().start(), &mut entry).ok()?;
    let is_seen = is_zero_or_shared(entry[0]) && frame_of(entry[0]) != 0;
    is_seen.then(|| frame_of(entry[0]))
}
