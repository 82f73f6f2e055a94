// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd asynchronous write protection, harvested by `PAGEMAP_SCAN` (Linux 6.7).
//!
//! A page is armed while its entry carries the write-protection mark; the kernel removes the mark at the first
//! write and lets the write pass. The scan reports the pages without the mark and sets it again under the lock of
//! their page table: a write comes before that (and is reported) or after it (and removes the mark again).
//!
//! The scan does not report memory that was discarded: `MADV_DONTNEED` empties entries, and may free whole page
//! tables, which the scan skips silently. How discards are found depends on what backs the memory.
//!
//! *Private anonymous*: a discarded page reads as zeros. The bitmap holds the pages whose copy at the caller may be
//! other than zeros (see `bitmap`): if such a page is empty, it is reported as discarded and its bit is cleared.
//! This is done by blocks (the pages of one page table, 2 MiB):
//! - *full*, all bits are set: the scan takes empty entries for written, so discards are reported and marked like
//!   writes, and keep their bits. Of a block without any report one entry is read as well: if it is not marked, the
//!   table may have been freed, and all entries of the block are read.
//! - *sparse*, not all bits are set: the scan skips empty entries, since marking them would report 511 pages for one
//!   written. Instead the entries of blocks with bits or writes are read. A page of zeros that was only read is
//!   marked and not reported.
//! - *fresh*, armed since the last collect: every bit counts as set. The bits of pages with content are set, and all
//!   others are reported as discarded, once. The kernel skips over the empty part, at almost no cost.
//!
//! *Private file*: a discarded page reads as the file. Every entry is marked from the beginning, as in shared memory
//! below. The bitmap holds the pages of which the process had a private copy; a page that lost it is reported. The
//! kernel keeps the mark on an emptied entry, where it looks like a page that is swapped out: such a page is reported
//! by every collect.
//!
//! *Shared*: a discarded page reads as before. Only writes count, but an empty entry may stand for a page that was
//! written and then reclaimed. So every entry is marked from the beginning, empty ones too, for which the kernel
//! allocates page tables, and the scan takes empty entries for written. If nothing of a block is reported, its marks
//! are checked: if they are gone, its table was freed, and the block is reported and marked again.

use std::os::fd::OwnedFd;

use linux_raw_sys::general::{
    PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, UFFD_FEATURE_WP_ASYNC,
    UFFD_FEATURE_WP_UNPOPULATED,
};

use super::{Armed, Backend, Collection, Part, Place, block_size, pieces, whole_blocks};
use crate::capability::BackendKind;
use crate::extent::{Dirty, PageRange, Reason, page_size};
use crate::maps::Mapping;
use crate::pagemap::{self, Entry, Regions, Scan};
use crate::room;
use crate::target::Target;
use crate::uffd::{Faults, Uffd};

#[derive(Debug)]
pub(super) struct UffdAsync {
    uffd: Uffd,
    regions: Regions,
    entries: Vec<Entry>,
    /// Blocks of which a scan reported nothing.
    silent: Vec<PageRange>,
    /// Blocks of which a scan reported something, joined.
    touched: Vec<PageRange>,
}

/// From this address on nothing is known: the memory is not armed any more.
struct Lost(usize);

/// Empty entries count as written.
const WRITTEN_OR_EMPTY: Scan = Scan { all: PAGE_IS_WRITTEN, any: 0, report: 0, protect: true };
/// Empty entries do not.
const WRITTEN: Scan = Scan {
    all: PAGE_IS_WRITTEN,
    any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
    report: PAGE_IS_PFNZERO,
    protect: true,
};

impl UffdAsync {
    /// With the userfaultfd that was handed over, if one was.
    pub(super) fn open(target: &Target, handed: Option<OwnedFd>) -> Result<Self, String> {
        if !pagemap::can_scan(target.pagemap()) {
            return Err("the kernel has no PAGEMAP_SCAN (Linux 6.7)".into());
        }
        // The kernel resolves these faults itself, those of its own writes too, so no privilege is needed.
        let features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED;
        let uffd = match handed {
            Some(fd) => Uffd::adopt(target, fd, features)?,
            None => Uffd::open(target, Faults::User, &[features])?,
        };
        Ok(UffdAsync {
            uffd,
            regions: Regions::default(),
            entries: Vec::new(),
            silent: Vec::new(),
            touched: Vec::new(),
        })
    }

    /// Mark all of `part`, which is armed.
    fn mark(&mut self, target: &Target, part: &Part) -> Result<(), Lost> {
        let ignore = &mut |_, _| ();
        if part.memory.is_private_anonymous() {
            // Pages that were moved here, and watched before, have marks that say nothing.
            self.uffd.write_protect(part.range, false).map_err(|_| Lost(part.range.start()))?;
            // Empty entries of reserved memory stay empty: marks would cost page tables.
            return self.scan(target, part.range, WRITTEN, |found, _| part.bitmap.fill(found, true));
        }
        self.uffd.write_protect(part.range, true).map_err(|_| Lost(part.range.start()))?;
        if part.memory.shared {
            return self.sweep_shared(target, part, ignore);
        }
        self.sweep_file(target, part, true, ignore)
    }

    /// Report the pages of `part` that are not marked, and mark them.
    fn sweep(&mut self, target: &Target, part: &Part, dirty: &mut Dirty) -> Result<(), Lost> {
        let mut report = |range, reason| dirty.push(range, reason);
        if part.memory.shared {
            return self.sweep_shared(target, part, &mut report);
        }
        if !part.memory.is_private_anonymous() {
            return self.sweep_file(target, part, false, &mut report);
        }
        let mut at = part.range.start();
        let sparse = |this: &mut Self, start, end, report: &mut _| {
            if start < end {
                this.sweep_sparse(target, part, PageRange::trusted(start, end), report)?;
            }
            Ok(())
        };
        for run in full_runs(part) {
            sparse(self, at, run.start(), &mut report)?;
            self.sweep_full(target, part, run, &mut report)?;
            at = run.end();
        }
        sparse(self, at, part.range.end(), &mut report)
    }

    fn is_armed(&self, target: &Target, range: PageRange, work: &Collection<'_>) -> bool {
        let rooms = || room::around(range, work.mappings, work.limits);
        pagemap::is_watched(target.pagemap(), range) && self.uffd.is_ours(&rooms(), range)
    }

    fn sweep_or_lose(&mut self, target: &Target, part: &Part, work: &mut Collection<'_>) {
        if let Err(Lost(from)) = self.sweep(target, part, work.dirty) {
            work.lost.push(PageRange::trusted(from, part.range.end()));
        }
    }

    fn sweep_full(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> Result<(), Lost> {
        let kinds = PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO;
        self.scan(target, run, Scan { report: kinds, ..WRITTEN_OR_EMPTY }, |found, categories| {
            let is_zero =
                categories & PAGE_IS_PFNZERO != 0 || categories & (PAGE_IS_PRESENT | PAGE_IS_SWAPPED) == 0;
            report(found, if is_zero { Reason::Discarded } else { Reason::Written });
        })?;
        for block in std::mem::take(&mut self.silent) {
            if !self.is_marked(target, block) {
                self.look_at_block(target, part, block, &mut report_discards(report))?;
            }
        }
        Ok(())
    }

    fn sweep_sparse(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> Result<(), Lost> {
        let is_fresh = part.bitmap.is_fresh();
        self.scan(target, run, WRITTEN, |found, categories| {
            if categories & PAGE_IS_PFNZERO == 0 {
                // It is reported and so copied: from now on a discard of it must be reported.
                part.bitmap.fill(found, true);
                report(found, Reason::Written);
            } else {
                // It reads as zeros: to be reported if it had content.
                pages(found)
                    .filter(|page| is_fresh || part.bitmap.get(part.bitmap.index(page.start())))
                    .for_each(|page| report(page, Reason::Discarded));
            }
        })?;
        if is_fresh {
            return self.report_empty(target, part, run, report);
        }
        self.look_at_content(target, part, run, &mut report_discards(report))
    }

    /// Report the empty pages of a fresh `run`, and set the bits of the others.
    fn report_empty(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> Result<(), Lost> {
        let mut at = run.start();
        let mut empty = |start, end| {
            if start < end {
                let hole = PageRange::trusted(start, end);
                // Few bits are set there: of pages that were just reported and discarded since.
                part.bitmap.set_within(hole).for_each(|piece| part.bitmap.fill(piece, false));
                report(hole, Reason::Discarded);
            }
        };
        let content = |found: PageRange, _| {
            part.bitmap.fill(found, true);
            empty(at, found.start());
            at = found.end();
        };
        pagemap::scan(target.pagemap(), run, Scan::CONTENT, &mut self.regions, content)
            .map_err(|_| Lost(run.start()))?;
        empty(at, run.end());
        Ok(())
    }

    fn sweep_file(
        &mut self,
        target: &Target,
        part: &Part,
        every_block: bool,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> Result<(), Lost> {
        let what = Scan { report: PAGE_IS_SWAPPED, ..WRITTEN_OR_EMPTY };
        self.scan(target, part.range, what, |found, categories| {
            // Swapped out and not marked: no marker, but a page of its own.
            if categories & PAGE_IS_SWAPPED != 0 {
                part.bitmap.fill(found, true);
            }
            report(found, Reason::Written);
        })?;
        self.mark_again(target, report)?;
        if every_block {
            self.touched.clear();
            self.touched.push(part.range);
        }
        self.look_at_content(target, part, part.range, &mut |page, had, entry: Entry| {
            let own = entry.is_present() && !entry.is_file();
            if had && !own {
                report(page, Reason::Written);
            }
            own || (had && entry.is_swapped())
        })
    }

    fn sweep_shared(
        &mut self,
        target: &Target,
        part: &Part,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> Result<(), Lost> {
        self.scan(target, part.range, WRITTEN_OR_EMPTY, |found, _| report(found, Reason::Written))?;
        self.mark_again(target, report)
    }

    /// Report the silent blocks that have lost their marks, and mark them.
    fn mark_again(
        &mut self,
        target: &Target,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> Result<(), Lost> {
        for block in std::mem::take(&mut self.silent) {
            if !self.is_marked(target, block) {
                self.uffd.write_protect(block, true).map_err(|_| Lost(block.start()))?;
                report(block, Reason::Written);
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
        // Earlier steps of the scan have reported pages whose bits are not set yet: all of the run is lost.
        let lost = |_| Lost(run.start());
        pagemap::scan(target.pagemap(), run, what, regions, note).map_err(lost)?;
        if notes_silence && at < run.end() {
            silent.extend(blocks(PageRange::trusted(at, run.end())));
        }
        Ok(())
    }

    /// Read the entries of the blocks of `run` that have bits or were just touched, and note what `judge` makes
    /// of each page: given whether its bit was set, it returns whether it is to be.
    fn look_at_content(
        &mut self,
        target: &Target,
        part: &Part,
        run: PageRange,
        judge: &mut impl FnMut(PageRange, bool, Entry) -> bool,
    ) -> Result<(), Lost> {
        let touched = std::mem::take(&mut self.touched);
        let mut touches = touched.iter().copied().peekable();
        let mut bits = part.bitmap.set_within(run).peekable();
        let mut at = run.start();
        loop {
            let is_touch = match (touches.peek(), bits.peek()) {
                (Some(touch), Some(bit)) => touch.start() < bit.start(),
                (touch, _) => touch.is_some(),
            };
            let Some(next) = (if is_touch { touches.next() } else { bits.next() }) else { break };
            let around = whole_blocks(next, run);
            if at.max(around.start()) < around.end() {
                for block in blocks(PageRange::trusted(at.max(around.start()), around.end())) {
                    self.look_at_block(target, part, block, judge)?;
                }
                at = around.end();
            }
        }
        self.touched = touched;
        Ok(())
    }

    fn look_at_block(
        &mut self,
        target: &Target,
        part: &Part,
        block: PageRange,
        judge: &mut impl FnMut(PageRange, bool, Entry) -> bool,
    ) -> Result<(), Lost> {
        pagemap::read(target.pagemap(), block, &mut self.entries).map_err(|_| Lost(block.start()))?;
        let first = part.bitmap.index(block.start());
        for (offset, page) in pages(block).enumerate() {
            let had = part.bitmap.get(first + offset);
            let has = judge(page, had, self.entries[offset]);
            if had != has {
                part.bitmap.put(first + offset, has);
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

    fn arm(&mut self, target: &Target, part: &Part, place: &Place<'_>) -> Armed {
        let armed = self.uffd.watch(part, &place.rooms);
        if armed != Armed::Watched {
            return armed;
        }
        if self.mark(target, part).is_err() {
            return Armed::Unsupported; // replaced while it was being armed; it is watched, and the next collect arms it
        }
        part.bitmap.set_fresh(true);
        Armed::Watched
    }

    fn enclose(&mut self, mappings: &[Mapping], end: usize) {
        self.uffd.enclose(mappings, end, |_| false);
    }

    fn release(&mut self, mappings: &[Mapping], end: usize) {
        self.uffd.release(mappings, end, |_| false);
    }

    fn disarm(&mut self, _target: &Target, _range: PageRange, _mapped: bool) {
        // Nothing is kept of it, and `release` has left it. What was lost is armed again.
    }

    fn collects_some(&self, _parts: &[Part]) -> bool {
        true
    }

    fn collect(&mut self, target: &Target, work: &mut Collection<'_>) {
        for part in work.parts {
            if self.is_armed(target, part.range, work) {
                self.sweep_or_lose(target, part, work);
                continue;
            }
            // One mapping that was replaced costs none of the others.
            for piece in pieces(part, work.mappings) {
                if self.is_armed(target, piece.range, work) {
                    self.sweep_or_lose(target, &piece, work);
                } else {
                    work.lost.push(piece.range);
                }
            }
        }
        // Not before: the pieces of a part share their bits.
        work.parts.iter().for_each(|part| part.bitmap.set_fresh(false));
    }
}

/// How a page of a sparse block is judged: reported if its bit is set and it is empty.
fn report_discards(report: &mut impl FnMut(PageRange, Reason)) -> impl FnMut(PageRange, bool, Entry) -> bool {
    move |page, had, entry| {
        if had && entry.is_none() {
            report(page, Reason::Discarded);
        }
        !entry.is_none()
    }
}

/// The runs of blocks of `part` whose bits are all set.
fn full_runs(part: &Part) -> impl Iterator<Item = PageRange> + '_ {
    let mut at = part.range.start();
    let mut full = part.bitmap.set_within(part.range).flat_map(move |piece| {
        let around = whole_blocks(piece, part.range);
        let start = at.max(around.start());
        at = at.max(around.end());
        let rest = (start < around.end()).then(|| PageRange::trusted(start, around.end()));
        rest.into_iter().flat_map(blocks)
    });
    let mut next = std::iter::from_fn(move || full.find(|block| part.bitmap.all_any(*block).0)).peekable();
    std::iter::from_fn(move || {
        let mut run = next.next()?;
        while let Some(block) = next.next_if(|block| block.start() == run.end()) {
            run = PageRange::trusted(run.start(), block.end());
        }
        Some(run)
    })
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
