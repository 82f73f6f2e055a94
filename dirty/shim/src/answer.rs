// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answers: what a write to `clear_refs` does, and bit 55 of what is read from `pagemap`.
//!
//! The kernel keeps the books: a page that a tracker armed has a mark in its entry (bit 57) until it is written.
//! Nothing is remembered here but which processes are tracked and where their tracker does not see.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libdirty::pagemap::Entry;
use libdirty::{BackendKind, Dirty, Error, PageRange, Reason, Tracker, page_size};
use libdirty_hold::protocol::Extent;

use crate::hold;
use crate::kernel;
use crate::known::Known;
use crate::own;
use crate::settings::{say, settings};

/// A process whose soft-dirty bits were cleared through this library.
pub(crate) struct Tracked {
    pid: i32,
    tracker: Tracker,
    dirty: Dirty,
    /// Where the marks mean nothing, sorted.
    blind: Vec<PageRange>,
}

/// All of this process's trackers. Locked only under the lock of [`crate::lock`], so no thread ever waits for it.
static TRACKED: Mutex<Vec<Tracked>> = Mutex::new(Vec::new());

fn tracked() -> MutexGuard<'static, Vec<Tracked>> {
    TRACKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: the trackers are the parent's. Dropping them here leaves its memory alone.
pub(crate) fn forget_trackers() {
    tracked().clear();
    crate::hold::forget();
    own::forget();
}

/// The most that the kernel looks at in what is written to `clear_refs` (PROC_NUMBUF - 1).
pub(crate) const COMMAND_LENGTH: usize = 12;

/// Whether the kernel would read this as the number 4.
pub(crate) fn is_clear_soft_dirty(command: &[u8]) -> bool {
    let end = command.iter().position(|byte| *byte == 0).unwrap_or(command.len());
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r' | 0xa0);
    let text = &command[..end];
    let first = text.iter().position(|byte| !is_space(byte)).unwrap_or(end);
    let last = text.iter().rposition(|byte| !is_space(byte)).map_or(first, |last| last + 1);
    let text = text[first..last].strip_prefix(b"+").unwrap_or(&text[first..last]);
    let Some((four, zeroes)) = text.split_last() else { return false };
    *four == b'4' && zeroes.iter().all(|byte| *byte == b'0')
}

/// Answer the "4": from now on every page is clean until it is written.
///
/// # Errors
/// The errno to fail with. Everything then reads soft-dirty.
pub(crate) fn clear_soft_dirty(known: Known) -> Result<(), c_int> {
    let Some(pid) = known.pid else {
        say("clear_refs of a procfs that is not /proc: refused");
        return Err(libc::EOPNOTSUPP);
    };
    if hold::answers_for(pid) {
        return catch_unwind(|| hold::clear(pid)).unwrap_or(Err(libc::EIO));
    }
    if settings().others && pid.cast_unsigned() == std::process::id() {
        return Ok(()); // all of it reads dirty, as ever
    }
    if let Some(done) = own::clear(pid) {
        return done;
    }
    match catch_unwind(AssertUnwindSafe(|| arm(pid))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            say(format_args!("process {pid} is not tracked, all of it reads dirty: {error}"));
            Err(error.errno())
        }
        Err(_) => {
            say(format_args!("process {pid} is not tracked, all of it reads dirty: the tracker panicked"));
            Err(libc::EIO)
        }
    }
}

fn arm(pid: i32) -> Result<(), Error> {
    let mut all = tracked();
    // Taken out: only what was armed to the end comes back.
    let known = all.iter().position(|tracked| tracked.pid == pid).map(|at| all.swap_remove(at));
    let rearmed = match known {
        Some(known) => known.rearm()?,
        None => None,
    };
    let armed = match rearmed {
        Some(armed) => armed,
        None => {
            // SAFETY: signal 0 only asks whether the process is there.
            all.retain(|tracked| unsafe { libc::kill(tracked.pid, 0) } == 0);
            Tracked::new(pid)?
        }
    };
    all.push(armed);
    Ok(())
}

impl Tracked {
    fn new(pid: i32) -> Result<Self, Error> {
        let mut tracker = Tracker::builder().backend(BackendKind::UffdAsync).process(pid)?;
        tracker.watch(PageRange::everything())?;
        say(format_args!("process {pid} is tracked by {}", tracker.backend()));
        let new = Tracked { pid, tracker, dirty: Dirty::new(), blind: Vec::new() };
        // The first collect reports what could not be armed.
        new.rearm()?.ok_or(Error::Gone(pid))
    }

    /// Arm every page again; `None` where the process has another memory now (`execve`) or none.
    fn rearm(mut self) -> Result<Option<Self>, Error> {
        match self.tracker.collect(&mut self.dirty) {
            Ok(()) => {}
            Err(Error::Gone(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        self.blind.clear();
        for extent in self.dirty.extents() {
            match extent.reason {
                Reason::Written | Reason::Discarded | Reason::NewMapping | Reason::Unmapped => {}
                Reason::Exec | Reason::Exited => return Ok(None),
                _ => self.blind.push(extent.range),
            }
        }
        self.blind.sort_unstable_by_key(|range| range.start());
        Ok(Some(self))
    }

    fn is_blind(&self, page: u64) -> bool {
        let address = page as usize * page_size();
        let next = self.blind.partition_point(|range| range.end() <= address);
        self.blind.get(next).is_some_and(|range| range.contains_address(address))
    }
}

/// Who knows which pages of a process are dirty.
pub(crate) enum Judge {
    Nobody,
    Tracker(MutexGuard<'static, Vec<Tracked>>, usize),
    Holder(i32),
}

/// What they know of some pages.
pub(crate) enum Told<'a> {
    Nothing,
    Marks(&'a Tracked),
    Extents(Vec<Extent>),
}

impl Judge {
    pub(crate) fn new(known: Known) -> Self {
        let Some(pid) = known.pid else { return Judge::Nobody };
        if hold::answers_for(pid) {
            return Judge::Holder(pid);
        }
        let all = tracked();
        match all.iter().position(|tracked| tracked.pid == pid) {
            Some(at) => Judge::Tracker(all, at),
            None => Judge::Nobody,
        }
    }

    /// Marks that the kernel shows may be a holder's, also where the holder says nothing.
    pub(crate) fn is_holder(&self) -> bool {
        matches!(self, Judge::Holder(_))
    }

    /// Every page is dirty.
    pub(crate) fn knows_nothing(&self) -> bool {
        matches!(self, Judge::Nobody)
    }

    /// What is known of the pages between two addresses; the kernel was asked about them before.
    pub(crate) fn told(&self, start: u64, end: u64) -> Told<'_> {
        match self {
            Judge::Nobody => Told::Nothing,
            Judge::Tracker(all, at) => Told::Marks(&all[*at]),
            Judge::Holder(pid) => {
                // Page 0 is nobody's.
                let range = PageRange::new((start as usize).max(page_size()), end as usize);
                let written = range.ok().and_then(|range| hold::written(*pid, range));
                written.map_or(Told::Nothing, Told::Extents)
            }
        }
    }
}

impl Told<'_> {
    /// Whether the page at `from` is watched by who tells, and up to where that is so. `is_allowed`: a userfaultfd watches
    /// it asynchronously.
    pub(crate) fn watched(&self, from: u64, end: u64, is_allowed: bool) -> (u64, bool) {
        match self {
            Told::Nothing => (end, false),
            Told::Marks(_) if !is_allowed => (end, false),
            Told::Marks(tracked) => not_in(tracked.blind.iter().copied(), from, end),
            Told::Extents(extents) => {
                let next = extents.partition_point(|extent| extent.range.end() as u64 <= from);
                let is_unseen = |extent: &&Extent| extent.reason == Reason::Unsupported as u32;
                not_in(extents[next..].iter().filter(is_unseen).map(|extent| extent.range), from, end)
            }
        }
    }

    /// Whether the page at `from`, which is watched, is dirty, and up to where that is so. `is_written`: it has no mark.
    pub(crate) fn dirty(&self, from: u64, end: u64, is_written: bool) -> (u64, bool) {
        match self {
            Told::Nothing => (end, true),
            Told::Marks(_) => (end, is_written),
            Told::Extents(extents) => {
                let next = extents.partition_point(|extent| extent.range.end() as u64 <= from);
                let (end, is_clean) = not_in(extents[next..].iter().map(|extent| extent.range), from, end);
                (end, !is_clean)
            }
        }
    }
}

/// Of an entry: a userfaultfd write-protects the page.
const UFFD_WP: u64 = 1 << 57;

/// Whether the page at `from` is in none of the sorted `ranges`, and up to where that is so.
fn not_in(ranges: impl IntoIterator<Item = PageRange>, from: u64, end: u64) -> (u64, bool) {
    match ranges.into_iter().find(|range| range.end() as u64 > from) {
        Some(range) if range.start() as u64 <= from => (end.min(range.end() as u64), false),
        Some(range) => (end.min(range.start() as u64), true),
        None => (end, true),
    }
}

/// Entries of a pagemap in the program's memory, at any alignment.
pub(crate) struct Entries {
    buffer: *mut Entry,
    first: u64,
    count: usize,
}

impl Entries {
    /// What the kernel has put in `buffer` from `offset` of the file on: `length` bytes, a number of whole entries.
    ///
    /// # Safety
    /// The bytes are the caller's to change.
    pub(crate) unsafe fn new(buffer: *mut c_void, length: usize, offset: i64) -> Self {
        let size = size_of::<Entry>();
        Entries { buffer: buffer.cast(), first: offset as u64 / size as u64, count: length / size }
    }

    fn change(&self, index: usize, change: impl FnOnce(Entry) -> Entry) {
        debug_assert!(index < self.count);
        // SAFETY: within what the kernel has filled, see `new`; not read as a reference, for it may be unaligned.
        unsafe {
            let entry = self.buffer.add(index);
            entry.write_unaligned(change(entry.read_unaligned()));
        }
    }

    /// Put in bit 55. `pagemap` is the file that they were read from.
    pub(crate) fn answer(&self, pagemap: c_int, known: Known) {
        // What is there is dirty until proven clean. So is an empty page of a mapping: the kernel has a new mapping
        // soft-dirty as a whole (pagemap_pte_hole in fs/proc/task_mmu.c). Where nothing is mapped there is no bit.
        for index in 0..self.count {
            self.change(index, |entry| entry.with_soft_dirty(!entry.is_none()));
        }
        if let Some(pid) = known.pid.filter(|pid| hold::answers_for(*pid)) {
            // A panic leaves every page dirty, or some.
            let _ = catch_unwind(AssertUnwindSafe(|| self.answer_held(pid)));
            return;
        }
        let pages = self.first..self.first + self.count as u64;
        let index_of = |run: Range<u64>| {
            (run.start.max(pages.start) - pages.start) as usize
                ..(run.end.min(pages.end) - pages.start) as usize
        };
        let mapped = kernel::mapped_pages(pagemap, pages.clone(), |run| {
            index_of(run).for_each(|index| self.change(index, |entry| entry.with_soft_dirty(true)));
        });
        if mapped.is_err() {
            // An error may mean that there is no memory at all, of which the entries say enough.
            return;
        }
        let all = tracked();
        let Some(tracked) = all.iter().find(|tracked| Some(tracked.pid) == known.pid) else { return };
        let scanned = kernel::watched_pages(pagemap, pages.clone(), |watched| {
            for index in index_of(watched) {
                if !tracked.is_blind(pages.start + index as u64) {
                    self.change(index, without_mark);
                }
            }
        });
        if let Err(error) = scanned {
            say(format_args!(
                "PAGEMAP_SCAN of process {}: {error}; what it did not reach reads dirty",
                tracked.pid
            ));
        }
    }

    /// By the holder, who is asked after the entries were read: a page that was written between the two is dirty.
    fn answer_held(&self, pid: i32) {
        let address = |index: u64| (index as usize).saturating_mul(page_size());
        let end = self.first + self.count as u64;
        // Page 0 is nobody's.
        let Ok(range) = PageRange::new(address(self.first.max(1)), address(end)) else { return };
        let Some(extents) = hold::written(pid, range) else {
            // The holder's marks are there all the same, if it is there.
            (0..self.count).for_each(|index| self.change(index, without_holders_mark));
            return;
        };
        let index_of = |address: usize| {
            ((address / page_size()) as u64).saturating_sub(self.first).min(self.count as u64) as usize
        };
        let clean = |index| self.change(index, |entry| without_mark(entry).with_soft_dirty(false));
        let dirty = |index| {
            self.change(index, |entry| {
                let entry = without_mark(entry);
                entry.with_soft_dirty(!entry.is_none())
            });
        };
        let mut from = 0;
        for extent in extents {
            let (start, end) = (index_of(extent.range.start()).max(from), index_of(extent.range.end()));
            (from..start).for_each(clean);
            // Where it does not see, marks are not the holder's.
            if extent.reason != Reason::Unsupported as u32 {
                (start..end).for_each(dirty);
            }
            from = end.max(start);
        }
        (from..self.count).for_each(clean);
    }
}

/// The entry without a mark that a holder may have made, in memory of which it says nothing.
fn without_holders_mark(entry: Entry) -> Entry {
    if entry.is_marker() { Entry::default() } else { Entry(entry.0 & !UFFD_WP) }
}

/// The entry of a watched page as it would be if it were not watched; clean if it has the mark, or is empty: its
/// mapping was there when the bits were cleared.
fn without_mark(entry: Entry) -> Entry {
    if entry.is_none() {
        return entry.with_soft_dirty(false);
    }
    if !entry.is_write_protected() {
        return entry;
    }
    if entry.is_marker() {
        return Entry::default();
    }
    Entry(entry.0 & !UFFD_WP).with_soft_dirty(false)
}
