// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd asynchronous write protection, harvested by `PAGEMAP_SCAN` (Linux 6.7).
//!
//! A page is armed while its entry carries the write-protection mark; the kernel lifts the mark at the first
//! write and lets it pass. The scan tells the pages without the mark and sets it again under the lock of their
//! page table: a write comes before (and is told) or after (and lifts the mark again).
//!
//! What the scan does not tell is memory that went away: `MADV_DONTNEED` empties entries, and may free whole page
//! tables, which the scan skips in silence. In *private anonymous* memory the bitmap holds the pages that had
//! content at the last collect, and by blocks (the pages of one page table, 2 MiB):
//!
//! - all bits set, *full*: the scan takes empty entries for written, so that discards are told and marked like
//!   writes. A block of which nothing is told is looked at once more, at one entry: if that is not marked, the
//!   table was freed, and the whole block is told.
//! - otherwise, *sparse*: the scan leaves empty entries alone, for marking them would tell 511 pages for one
//!   written. The entries are read instead, and a page that had content and has none is told.
//!
//! An empty page that had no content before has none now: it reads as zero both times, whatever happened between.
//!
//! In *file and shared* memory an empty entry may stand for a page that was written and reclaimed; there every
//! block is scanned as full, and the bits mean that some page of the block was told once.

use linux_raw_sys::general::{
    PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_UNPOPULATED,
};

use super::{Armed, Backend, Collection, Part};
use crate::capability::BackendKind;
use crate::extent::{Dirty, PageRange, Reason, page_size};
use crate::fault::Fault;
use crate::maps::Mapping;
use crate::pagemap::{self, Entry, Regions, Scan};
use crate::target::Target;
use crate::uffd::{Faults, Uffd};

#[derive(Debug)]
pub(super) struct UffdAsync {
    uffd: Uffd,
    regions: Regions,
    entries: Vec<Entry>,
    /// Full blocks of which a scan told nothing.
    silent: Vec<PageRange>,
    fault: Option<Fault>,
}

/// From here on a scan could not tell: the memory is not armed any more.
struct Lost(usize);

impl UffdAsync {
    pub(super) fn open(target: &Target, fault: Option<Fault>) -> Result<Self, String> {
        if !pagemap::can_scan(target.pagemap()) {
            return Err("the kernel has no PAGEMAP_SCAN (Linux 6.7)".into());
        }
        // The kernel resolves these faults itself, its own among them: no need of the privileged kind.
        let features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED;
        let uffd = Uffd::open(target, Faults::User, &[features])?;
        Ok(UffdAsync { uffd, regions: Regions::new(), entries: Vec::new(), silent: Vec::new(), fault })
    }

    /// Tell what is not marked in `part`, and mark it.
    fn sweep(&mut self, target: &Target, part: &Part, mut dirty: Option<&mut Dirty>) -> Result<(), Lost> {
        let mut tell = |range| {
            if let Some(dirty) = dirty.as_deref_mut() {
                dirty.push(range, Reason::Written);
            }
        };
        let exact = part.memory.is_private_anonymous();
        let mut blocks = blocks(part.range).peekable();
        while let Some(first) = blocks.next() {
            let full = !exact || part.bitmap.all_any(first).0;
            let mut run = first;
            while let Some(next) = blocks.next_if(|next| !exact || part.bitmap.all_any(*next).0 == full) {
                run = PageRange::trusted(run.start(), next.end());
            }
            if full {
                self.sweep_full(target, part, run, exact, &mut tell)?;
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
        exact: bool,
        tell: &mut impl FnMut(PageRange),
    ) -> Result<(), Lost> {
        let silent = &mut self.silent;
        silent.clear();
        let mut at = run.start();
        let mut skipped = |from: usize, to: usize| {
            if from < to {
                silent.extend(
                    blocks(PageRange::trusted(from, to)).filter(|block| part.bitmap.all_any(*block).0),
                );
            }
        };
        let what = Scan { all: PAGE_IS_WRITTEN, any: 0, protect: true };
        scan(target, run, what, &mut self.regions, self.fault, |found| {
            let touched = whole_blocks(found, run);
            skipped(at, touched.start().max(at));
            at = touched.end();
            if !exact {
                part.bitmap.fill(touched, true);
            }
            tell(found);
        })?;
        skipped(at, run.end());
        if self.fault == Some(Fault::Discard) {
            return Ok(());
        }
        for block in &self.silent {
            let mut entry = [Entry::default()];
            let read = pagemap::read_into(target.pagemap(), block.start(), &mut entry);
            if read.is_err() || !entry[0].is_write_protected() {
                tell(*block);
                part.bitmap.fill(*block, false);
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
        // Which blocks to read: those with content, and those that have some now.
        let mut touched: Vec<PageRange> = Vec::new();
        let what = Scan { all: PAGE_IS_WRITTEN, any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED, protect: true };
        scan(target, run, what, &mut self.regions, self.fault, |found| {
            let around = whole_blocks(found, run);
            match touched.last_mut() {
                Some(last) if last.end() >= around.start() => {
                    *last = PageRange::trusted(last.start(), around.end().max(last.end()));
                }
                _ => touched.push(around),
            }
            tell(found);
        })?;

        let mut touched = touched.into_iter().peekable();
        for block in blocks(run) {
            while touched.next_if(|range| range.end() <= block.start()).is_some() {}
            let is_touched = touched.peek().is_some_and(|range| range.start() < block.end());
            if !is_touched && !part.bitmap.all_any(block).1 {
                continue;
            }
            if pagemap::read(target.pagemap(), block, &mut self.entries).is_err() {
                return Err(Lost(block.start()));
            }
            let first = part.bitmap.index(block.start());
            for (offset, entry) in self.entries.iter().enumerate() {
                let (had, has) = (part.bitmap.get(first + offset), !entry.is_none());
                if had && !has && self.fault != Some(Fault::Discard) {
                    let start = block.start() + offset * page_size();
                    tell(PageRange::trusted(start, start + page_size()));
                }
                if had != has {
                    part.bitmap.put(first + offset, has);
                }
            }
        }
        Ok(())
    }
}

impl Backend for UffdAsync {
    fn kind(&self) -> BackendKind {
        BackendKind::UffdAsync
    }

    fn arm(&mut self, target: &Target, part: &Part, _mappings: &[Mapping]) -> Armed {
        if let Err(error) = self.uffd.register(part.range) {
            return match error.raw_os_error() {
                Some(libc::EPERM) => Armed::Constant, // no VM_MAYWRITE
                _ => Armed::Unsupported,
            };
        }
        match self.sweep(target, part, None) {
            Ok(()) => Armed::Watched,
            Err(Lost(_)) => {
                let _ = self.uffd.unregister(part.range);
                Armed::Unsupported // replaced while it was being armed
            }
        }
    }

    fn disarm(&mut self, _target: &Target, range: PageRange, mapped: bool) {
        if mapped {
            // Fails only where the memory has gone meanwhile, and the protection with it.
            let _ = self.uffd.unregister(range);
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

/// `found` grown to the borders of page tables, within `run`.
fn whole_blocks(found: PageRange, run: PageRange) -> PageRange {
    let size = block_size();
    PageRange::trusted(
        (found.start() / size * size).max(run.start()),
        found.end().div_ceil(size).saturating_mul(size).min(run.end()),
    )
}

fn scan(
    target: &Target,
    run: PageRange,
    what: Scan,
    regions: &mut Regions,
    fault: Option<Fault>,
    mut found: impl FnMut(PageRange),
) -> Result<(), Lost> {
    let lost = |(from, _)| Lost(from);
    if fault == Some(Fault::Race) {
        let look = Scan { protect: false, ..what };
        pagemap::scan(target.pagemap(), run, look, regions, &mut found).map_err(lost)?;
        return pagemap::scan(target.pagemap(), run, what, regions, |_| ()).map_err(lost);
    }
    pagemap::scan(target.pagemap(), run, what, regions, found).map_err(lost)
}
