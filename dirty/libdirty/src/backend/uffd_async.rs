// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd asynchronous write protection, harvested by `PAGEMAP_SCAN` (Linux 6.7).
//!
//! A page is armed while its entry carries the write-protection mark; the kernel lifts the mark at the first
//! write and lets it pass. The scan tells the pages without the mark and sets it again under the lock of their
//! page table: a write comes before (and is told) or after (and lifts the mark again).
//!
//! What the scan does not tell is memory that went away: `MADV_DONTNEED` empties entries, and may free whole page
//! tables, which the scan skips in silence. What that means depends on what is behind the memory.
//!
//! *Private anonymous*: zeros. The bitmap holds the pages that had content at the last collect. By blocks (the
//! pages of one page table, 2 MiB):
//! - all bits set, *full*: the scan takes empty entries for written, so that discards are told and marked like
//!   writes. A block of which nothing is told is looked at once more, at one entry: if that is not marked, the
//!   table was freed, and the whole block is told.
//! - otherwise, *sparse*: the scan leaves empty entries alone, for marking them would tell 511 pages for one
//!   written. The entries are read instead, and a page that had content and has none is told. A page of zeros
//!   that was only read is marked and not told.
//!
//! *Private file*: the file. The scan leaves empty entries alone. The bitmap holds the pages that the process
//! had made its own; one that is not any more is told. The kernel keeps the mark on an emptied entry, where
//! it looks like a page that is swapped out: such a page is told by every collect.
//!
//! *Shared*: what was there. Only writes count, but an empty entry may stand for a page that was written and then
//! reclaimed. So every entry is marked from the beginning, empty ones too, for which the kernel makes page
//! tables, and the scan takes empty entries for written. A block of which nothing is told must have its marks,
//! or its table was freed: it is told and marked again.

use linux_raw_sys::general::{
    PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, UFFD_FEATURE_WP_ASYNC,
    UFFD_FEATURE_WP_UNPOPULATED,
};

use super::{Armed, Backend, Collection, Part};
use crate::capability::BackendKind;
use crate::extent::{Dirty, PageRange, Reason, page_size};
use crate::maps::Mapping;
use crate::pagemap::{self, Entry, Regions, Scan};
use crate::target::Target;
use crate::uffd::{Faults, Uffd};

#[derive(Debug)]
pub(super) struct UffdAsync {
    uffd: Uffd,
    regions: Regions,
    entries: Vec<Entry>,
    /// Blocks of which a scan told nothing.
    silent: Vec<PageRange>,
    /// Blocks of which a scan told something, joined.
    touched: Vec<PageRange>,
}

/// From here on a scan could not tell: the memory is not armed any more.
struct Lost(usize);

/// Empty entries count as written.
const WRITTEN_OR_EMPTY: Scan = Scan { all: PAGE_IS_WRITTEN, any: 0, tell: 0, protect: true };
/// Empty entries do not.
const WRITTEN: Scan = Scan {
    all: PAGE_IS_WRITTEN,
    any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
    tell: PAGE_IS_PFNZERO,
    protect: true,
};

impl UffdAsync {
    pub(super) fn open(target: &Target) -> Result<Self, String> {
        if !pagemap::can_scan(target.pagemap()) {
            return Err("the kernel has no PAGEMAP_SCAN (Linux 6.7)".into());
        }
        // The kernel resolves these faults itself, its own among them: no need of the privileged kind.
        let features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED;
        let uffd = Uffd::open(target, Faults::User, &[features])?;
        Ok(UffdAsync {
            uffd,
            regions: Regions::default(),
            entries: Vec::new(),
            silent: Vec::new(),
            touched: Vec::new(),
        })
    }

    /// Tell what is not marked in `part`, and mark it.
    fn sweep(&mut self, target: &Target, part: &Part, mut dirty: Option<&mut Dirty>) -> Result<(), Lost> {
        let mut tell = |range| {
            if let Some(dirty) = dirty.as_deref_mut() {
                dirty.push(range, Reason::Written);
            }
        };
        if part.memory.shared {
            return self.sweep_shared(target, part, &mut tell);
        }
        if !part.memory.is_private_anonymous() {
            return self.sweep_file(target, part, &mut tell);
        }
        let mut blocks = blocks(part.range).peekable();
        while let Some(first) = blocks.next() {
            let full = part.bitmap.all_any(first).0;
            let mut run = first;
            while let Some(next) = blocks.next_if(|next| part.bitmap.all_any(*next).0 == full) {
                run = PageRange::trusted(run.start(), next.end());
            }
            if full {
                self.sweep_full(target, part, run, &mut tell)?;
            } else {
                self.sweep_sparse(target, part, run, &mut tell)?;
            }
        }
        Ok(())
    }

    fn sweep_full(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        tell: &mut impl FnMut(PageRange),
    ) -> Result<(), Lost> {
        self.scan(target, run, WRITTEN_OR_EMPTY, |found, _| tell(found))?;
        for block in std::mem::take(&mut self.silent) {
            if !self.is_marked(target, block) {
                tell(block);
                part.bitmap.fill(block, false);
            }
        }
        Ok(())
    }

    fn sweep_sparse(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        tell: &mut impl FnMut(PageRange),
    ) -> Result<(), Lost> {
        self.scan(target, run, WRITTEN, |found, categories| {
            if categories & PAGE_IS_PFNZERO == 0 {
                tell(found);
            } else {
                // It shows zeros. That is news of a page that had content.
                pages(found)
                    .filter(|page| part.bitmap.get(part.bitmap.index(page.start())))
                    .for_each(&mut *tell);
            }
        })?;
        self.look_at_content(target, part, run, |page, had, entry| {
            if had && entry.is_none() {
                tell(page);
            }
            !entry.is_none()
        })
    }

    fn sweep_file(
        &mut self,
        target: &Target,
        part: &Part,
        tell: &mut impl FnMut(PageRange),
    ) -> Result<(), Lost> {
        self.scan(target, part.range, Scan { tell: PAGE_IS_SWAPPED, ..WRITTEN }, |found, categories| {
            // Swapped out and not marked: no marker, but a page of its own.
            if categories & PAGE_IS_SWAPPED != 0 {
                part.bitmap.fill(found, true);
            }
            tell(found);
        })?;
        self.look_at_content(target, part, part.range, |page, had, entry| {
            let own = entry.is_present() && !entry.is_file();
            if had && !own {
                tell(page);
            }
            own || (had && entry.is_swapped())
        })
    }

    fn sweep_shared(
        &mut self,
        target: &Target,
        part: &Part,
        tell: &mut impl FnMut(PageRange),
    ) -> Result<(), Lost> {
        self.scan(target, part.range, WRITTEN_OR_EMPTY, |found, _| tell(found))?;
        for block in std::mem::take(&mut self.silent) {
            if !self.is_marked(target, block) {
                self.uffd.write_protect(block, true).map_err(|_| Lost(block.start()))?;
                tell(block);
            }
        }
        Ok(())
    }

    /// Scan a run, and note the blocks that are touched and, where empty entries count, those that are silent.
    fn scan(
        &mut self,
        target: &Target,
        run: PageRange,
        what: Scan,
        mut found: impl FnMut(PageRange, u32),
    ) -> Result<(), Lost> {
        let (silent, touched) = (&mut self.silent, &mut self.touched);
        silent.clear();
        touched.clear();
        let mut at = run.start();
        let notes_silence = what.any == 0;
        let note = |pages: PageRange, categories| {
            let around = whole_blocks(pages, run);
            if notes_silence && at < around.start() {
                silent.extend(blocks(PageRange::trusted(at, around.start())));
            }
            at = around.end();
            match touched.last_mut() {
                Some(last) if last.end() >= around.start() => {
                    *last = PageRange::trusted(last.start(), around.end());
                }
                _ => touched.push(around),
            }
            found(pages, categories);
        };
        let regions = &mut self.regions;
        // What an earlier step of the scan found is told, but its bits are not noted yet: all of the run is lost.
        let lost = |_| Lost(run.start());
        pagemap::scan(target.pagemap(), run, what, regions, note).map_err(lost)?;
        if notes_silence && at < run.end() {
            silent.extend(blocks(PageRange::trusted(at, run.end())));
        }
        Ok(())
    }

    /// Read the entries of the blocks of `run` that had content or were just touched, and note what `judge` makes
    /// of each page: given whether its bit was set, it returns whether it is to be.
    fn look_at_content(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        mut judge: impl FnMut(PageRange, bool, Entry) -> bool,
    ) -> Result<(), Lost> {
        let mut touched = self.touched.iter().peekable();
        for block in blocks(run) {
            while touched.next_if(|range| range.end() <= block.start()).is_some() {}
            let is_touched = touched.peek().is_some_and(|range| range.start() < block.end());
            if !is_touched && !part.bitmap.all_any(block).1 {
                continue;
            }
            pagemap::read(target.pagemap(), block, &mut self.entries).map_err(|_| Lost(block.start()))?;
            let first = part.bitmap.index(block.start());
            for (offset, page) in pages(block).enumerate() {
                let had = part.bitmap.get(first + offset);
                let has = judge(page, had, self.entries[offset]);
                if had != has {
                    part.bitmap.put(first + offset, has);
                }
            }
        }
        Ok(())
    }

    /// Whether the page table of `block` is still the one that was marked.
    fn is_marked(&self, target: &Target, block: PageRange) -> bool {
        let mut entry = [Entry::default()];
        let read = pagemap::read_into(target.pagemap(), block.start(), &mut entry);
        read.is_ok() && entry[0].is_write_protected()
    }
}

impl Backend for UffdAsync {
    fn kind(&self) -> BackendKind {
        BackendKind::UffdAsync
    }

    fn arm(&mut self, target: &Target, part: &Part, _mappings: &[Mapping]) -> Armed {
        let armed = self.uffd.watch(part);
        if armed != Armed::Watched {
            return armed;
        }
        let marked = !part.memory.shared || self.uffd.write_protect(part.range, true).is_ok();
        if !marked || self.sweep(target, part, None).is_err() {
            self.uffd.leave(target, part.range);
            return Armed::Unsupported; // replaced while it was being armed
        }
        Armed::Watched
    }

    fn disarm(&mut self, target: &Target, range: PageRange, mapped: bool) {
        if mapped {
            self.uffd.leave(target, range);
        }
    }

    fn collect(&mut self, target: &Target, work: &mut Collection<'_>) {
        for part in work.parts {
            if let Err(Lost(from)) = self.sweep(target, part, Some(work.dirty)) {
                work.lost.push(PageRange::trusted(from, part.range.end()));
            }
        }
    }
}

/// The pages of one page table.
fn block_size() -> usize {
    page_size() / size_of::<u64>() * page_size()
}

/// `range` cut at the borders of page tables.
fn blocks(range: PageRange) -> impl Iterator<Item = PageRange> {
    let size = block_size();
    let mut at = range.start();
    std::iter::from_fn(move || {
        (at < range.end()).then(|| {
            let block = PageRange::trusted(at, ((at / size + 1) * size).min(range.end()));
            at = block.end();
            block
        })
    })
}

/// `range` page by page.
fn pages(range: PageRange) -> impl Iterator<Item = PageRange> {
    let page = page_size();
    (range.start()..range.end()).step_by(page).map(move |start| PageRange::trusted(start, start + page))
}

/// `found` grown to the borders of page tables, within `run`.
fn whole_blocks(found: PageRange, run: PageRange) -> PageRange {
    let size = block_size();
    PageRange::trusted(
        (found.start() / size * size).max(run.start()),
        found.end().div_ceil(size).saturating_mul(size).min(run.end()),
    )
}
