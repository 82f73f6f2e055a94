// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `ioctl(PAGEMAP_SCAN)` of a pagemap that is answered here: the kernel's own answer, with soft-dirty put in and the
//! traces of the tracker taken out.
//!
//! The kernel checks the arguments, and finds what is mapped and in which state; what it says of each run of pages is
//! corrected here ([`Judge::correct`]), and then matched with what the caller asked for, as the kernel would have.
//!
//! Invariants:
//! - **Never falsely clean**, as in `answer`: soft-dirty is left out only where a tracker of this process watches and the
//!   kernel says that the page was not written since it was armed, or where a holder says so. The state of pages is read
//!   before the holder is asked: a page that was written between the two is dirty.
//! - **The tracker loses nothing**: a scan that write-protects (`PM_SCAN_WP_MATCHING`) never reaches memory that the
//!   tracker watches. It is not the caller's to protect by a scan, as it would not be without the tracker.

use std::ffi::{c_int, c_ulong};

use libdirty::page_size;
use libdirty::pagemap::Entry;
use linux_raw_sys::general::{
    PAGE_IS_PRESENT, PAGE_IS_SOFT_DIRTY, PAGE_IS_SWAPPED, PAGE_IS_WPALLOWED, PAGE_IS_WRITTEN,
    PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, page_region, pm_scan_arg,
};

use crate::answer::{Judge, Told};
use crate::kernel;
use crate::known::Known;
use crate::real;

/// The request.
pub(crate) const PAGEMAP_SCAN: c_ulong = 0xc060_6610;

const SOFT_DIRTY: u64 = PAGE_IS_SOFT_DIRTY as u64;
const WP_ALLOWED: u64 = PAGE_IS_WPALLOWED as u64;
const WRITTEN: u64 = PAGE_IS_WRITTEN as u64;
const CONTENT: u64 = (PAGE_IS_PRESENT | PAGE_IS_SWAPPED) as u64;
const SWAPPED: u64 = PAGE_IS_SWAPPED as u64;

/// Runs of pages that are asked for at a time.
const BATCH: usize = 512;
/// Entries that are looked at at a time.
const ENTRIES: usize = 512;

/// Answer the ioctl with the structure at `argument`: how many regions were stored.
///
/// # Errors
/// The errno to fail with.
pub(crate) fn answer(pagemap: c_int, known: Known, argument: usize) -> Result<c_int, c_int> {
    let mut asked = copy_in(argument).ok_or(libc::EFAULT)?;
    check(pagemap, &asked)?;
    asked.start = kernel::untagged(asked.start);
    asked.end = kernel::untagged(asked.end).next_multiple_of(page_size() as u64);
    asked.vec = kernel::untagged(asked.vec);
    let mut regions = Regions::new(&asked);
    let judge = Judge::new(known);
    let full = if judge.knows_nothing() {
        by_kernel(pagemap, &asked, (asked.start, asked.end), &mut regions)?
    } else if asked.flags == 0 && asked.vec_len == 0 {
        None // nothing to report, nothing to do
    } else {
        look(pagemap, &judge, &asked, &mut regions)?
    };
    regions.store()?;
    let end = full.unwrap_or(asked.end);
    let place = argument + std::mem::offset_of!(pm_scan_arg, walk_end);
    kernel::copy_out(place, &end.to_ne_bytes()).ok_or(libc::EFAULT)?;
    Ok(c_int::try_from(regions.count).unwrap_or(c_int::MAX))
}

fn copy_in(argument: usize) -> Option<pm_scan_arg> {
    let mut bytes = [0; size_of::<pm_scan_arg>()];
    kernel::copy_in(argument, &mut bytes)?;
    // SAFETY: the structure is plain numbers: any bytes are a value.
    Some(unsafe { std::mem::transmute::<[u8; size_of::<pm_scan_arg>()], pm_scan_arg>(bytes) })
}

/// Have the kernel refuse what it refuses. Looks at one page at most, and changes none.
fn check(pagemap: c_int, asked: &pm_scan_arg) -> Result<(), c_int> {
    // In the kernel's order: the numbers and where it begins, then where it ends, then the room.
    let nowhere = pm_scan_arg { end: asked.start, vec: 0, vec_len: 0, ..*asked };
    ask(pagemap, nowhere)?;
    if kernel::untagged(asked.end) < kernel::untagged(asked.start) {
        return Err(libc::EFAULT);
    }
    let start = asked.end / page_size() as u64 * page_size() as u64;
    ask(pagemap, pm_scan_arg { start, end: asked.end, flags: 0, ..nowhere })?;
    ask(pagemap, pm_scan_arg { end: asked.start, ..*asked })?;
    Ok(())
}

/// The kernel's answer: how many regions, and where it stopped.
fn ask(pagemap: c_int, mut asked: pm_scan_arg) -> Result<(usize, u64), c_int> {
    // SAFETY: the structure is ours; its vector is ours, or the caller's in a range without pages, or none.
    let count = unsafe { real::ioctl(pagemap, PAGEMAP_SCAN, (&raw mut asked) as usize) };
    usize::try_from(count).map(|count| (count, asked.walk_end)).map_err(|_| kernel::errno())
}

/// Ask for what is between `start` and `end`, as far as `room` goes; where it stopped.
fn raw(
    pagemap: c_int,
    asked: &pm_scan_arg,
    (start, end): (u64, u64),
    room: &mut Vec<page_region>,
) -> Result<u64, c_int> {
    let masks = asked.category_mask | asked.category_anyof_mask | asked.return_mask;
    let all = pm_scan_arg {
        flags: 0,
        start,
        end,
        vec: room.as_mut_ptr() as u64,
        vec_len: room.capacity() as u64,
        max_pages: 0,
        category_inverted: 0,
        category_mask: 0,
        category_anyof_mask: 0,
        return_mask: masks & !SOFT_DIRTY | WP_ALLOWED | WRITTEN | CONTENT,
        ..*asked
    };
    let (count, stop) = ask(pagemap, all)?;
    // SAFETY: the kernel has filled that many, of as many as there is room for.
    unsafe { room.set_len(count) };
    if stop <= start { Err(libc::EIO) } else { Ok(stop) }
}

/// Look at everything that is asked for, and store what matches. Returns the first page for which there was no room.
///
/// Memory that nobody tracks is dirty. Where the caller's own memory is to be write-protected, or all is to be watched
/// asynchronously, the kernel looks at such memory by itself, with the caller's flags.
fn look(
    pagemap: c_int,
    judge: &Judge,
    asked: &pm_scan_arg,
    regions: &mut Regions,
) -> Result<Option<u64>, c_int> {
    let mut room = Vec::with_capacity(BATCH);
    let mut at = asked.start;
    while at < asked.end {
        room.clear();
        let stop = raw(pagemap, asked, (at, asked.end), &mut room)?;
        let told = judge.told(at, stop);
        for run in &room {
            let mut from = run.start;
            while from < run.end {
                let (end, is_watched) = told.watched(from, run.end, run.categories & WP_ALLOWED != 0);
                let piece = page_region { start: from, end, ..*run };
                let full = if !is_watched && asked.flags != 0 {
                    by_kernel(pagemap, asked, (from, end), regions)?
                } else if !is_watched {
                    unwatched(pagemap, judge.is_holder(), piece, |piece| regions.push_if(asked, piece))
                } else if asked.flags & u64::from(PM_SCAN_CHECK_WPASYNC) != 0 {
                    return Err(libc::EPERM);
                } else if asked.flags & u64::from(PM_SCAN_WP_MATCHING) != 0 {
                    None // left out, as memory that cannot be protected
                } else {
                    correct(pagemap, &told, piece, |piece| regions.push_if(asked, piece))
                };
                if full.is_some() {
                    return Ok(full);
                }
                from = end;
            }
        }
        regions.store_some()?;
        at = stop;
    }
    Ok(None)
}

/// What is left to ask of pages that are soft-dirty; `None`: none of them matches.
fn if_dirty(asked: &pm_scan_arg) -> Option<pm_scan_arg> {
    let (is_inverted, mut dirty) = (asked.category_inverted & SOFT_DIRTY != 0, *asked);
    dirty.category_inverted &= !SOFT_DIRTY;
    if asked.category_mask & SOFT_DIRTY != 0 {
        if is_inverted {
            return None;
        }
        dirty.category_mask &= !SOFT_DIRTY;
    }
    if asked.category_anyof_mask & SOFT_DIRTY != 0 {
        dirty.category_anyof_mask &= !SOFT_DIRTY;
        if !is_inverted {
            dirty.category_anyof_mask = 0;
        } else if dirty.category_anyof_mask == 0 {
            return None;
        }
    }
    Some(dirty)
}

/// Have the kernel answer for pages that are all dirty. Returns the first page for which there was no room.
fn by_kernel(
    pagemap: c_int,
    asked: &pm_scan_arg,
    (start, end): (u64, u64),
    regions: &mut Regions,
) -> Result<Option<u64>, c_int> {
    let Some(dirty) = if_dirty(asked) else {
        // None of them is asked for, but they may have to be watched.
        let flags = asked.flags & u64::from(PM_SCAN_CHECK_WPASYNC);
        ask(pagemap, pm_scan_arg { start, end, flags, vec: 0, vec_len: 0, ..*asked })?;
        return Ok(None);
    };
    let mut found = Vec::<page_region>::with_capacity(BATCH);
    let mut at = start;
    while at < end {
        let room = regions.room().min(found.capacity() as u64);
        if regions.vec_len > 0 && room == 0 {
            return Ok(Some(at));
        }
        let part = pm_scan_arg {
            start: at,
            end,
            vec: if room == 0 { 0 } else { found.as_mut_ptr() as u64 },
            vec_len: room,
            max_pages: regions.pages,
            return_mask: asked.return_mask & !SOFT_DIRTY,
            ..dirty
        };
        let (count, stop) = ask(pagemap, part)?;
        // SAFETY: the kernel has filled that many, of as many as there is room for.
        unsafe { found.set_len(count) };
        for run in found.drain(..) {
            regions.push(page_region { categories: run.categories | SOFT_DIRTY, ..run });
        }
        regions.store_some()?;
        if stop <= at {
            return Err(libc::EIO);
        }
        at = stop;
    }
    Ok(None)
}

/// Pass on the pieces of a run of which nothing is known: all dirty, until one has no room. Empty pages with a mark
/// `of_holder` are empty.
fn unwatched(
    pagemap: c_int,
    of_holder: bool,
    run: page_region,
    mut each: impl FnMut(page_region) -> Option<u64>,
) -> Option<u64> {
    let has_marks = of_holder && run.categories & SWAPPED != 0 && run.categories & WRITTEN == 0;
    let mut from = run.start;
    while from < run.end {
        let (end, is_empty) = if has_marks { marked(pagemap, from, run.end) } else { (run.end, false) };
        let content = if is_empty { !SWAPPED } else { u64::MAX };
        let full = each(page_region { start: from, end, categories: run.categories & content | SOFT_DIRTY });
        if full.is_some() {
            return full;
        }
        from = end;
    }
    None
}

/// Pass on the pieces of a run that is watched, as they would be if it were not, until one has no room.
fn correct(
    pagemap: c_int,
    told: &Told<'_>,
    run: page_region,
    mut each: impl FnMut(page_region) -> Option<u64>,
) -> Option<u64> {
    let has_content = run.categories & CONTENT != 0;
    let is_written = run.categories & WRITTEN != 0;
    let mut from = run.start;
    while from < run.end {
        let (mut end, mut categories) = (run.end, run.categories & !WP_ALLOWED);
        if has_content {
            categories |= WRITTEN;
            if categories & SWAPPED != 0 && !is_written {
                let (stop, is_empty) = marked(pagemap, from, end);
                end = stop;
                categories &= if is_empty { !SWAPPED } else { u64::MAX };
            }
            let (stop, is_dirty) = told.dirty(from, end, is_written);
            end = stop;
            // An empty page is clean: its mapping was there when the bits were cleared.
            if is_dirty && categories & CONTENT != 0 {
                categories |= SOFT_DIRTY;
            }
        }
        let full = each(page_region { start: from, end, categories });
        if full.is_some() {
            return full;
        }
        from = end;
    }
    None
}

/// Whether the page at `from`, which reads as swapped out and has a mark, is an empty one that was marked; and up to
/// where that is so.
fn marked(pagemap: c_int, from: u64, end: u64) -> (u64, bool) {
    let size = page_size() as u64;
    let mut entries = [Entry::default(); ENTRIES];
    let pages = ((end - from) / size).min(ENTRIES as u64) as usize;
    // Entries that cannot be read any more are of memory that is gone: it may be called either.
    kernel::entries(pagemap, from, &mut entries[..pages]);
    let is_empty = |entry: &Entry| entry.is_marker();
    let first = is_empty(&entries[0]);
    let count = entries[..pages].iter().take_while(|entry| is_empty(entry) == first).count();
    (from + count as u64 * size, first)
}

/// Whether the kernel would report a page of these categories.
fn matches(asked: &pm_scan_arg, categories: u64) -> bool {
    let categories = categories ^ asked.category_inverted;
    categories & asked.category_mask == asked.category_mask
        && (asked.category_anyof_mask == 0 || categories & asked.category_anyof_mask != 0)
}

/// The caller's vector, filled in order.
struct Regions {
    /// Where the next region that is complete goes.
    place: usize,
    vec_len: u64,
    return_mask: u64,
    /// Pages that may still be reported.
    pages: u64,
    /// Regions so far, those that wait to be stored among them.
    count: u64,
    waiting: Vec<page_region>,
}

impl Regions {
    fn new(asked: &pm_scan_arg) -> Self {
        Regions {
            place: asked.vec as usize,
            vec_len: asked.vec_len,
            return_mask: asked.return_mask,
            pages: if asked.max_pages == 0 { u64::MAX } else { asked.max_pages },
            count: 0,
            waiting: Vec::with_capacity(2 * BATCH),
        }
    }

    /// How many more regions there may be. (The next one may join the last.)
    fn room(&self) -> u64 {
        if self.pages == 0 { 0 } else { self.vec_len - self.count }
    }

    /// Add a run if it is asked for. Returns its first page for which there is no room.
    fn push_if(&mut self, asked: &pm_scan_arg, run: page_region) -> Option<u64> {
        if matches(asked, run.categories) { self.push(run) } else { None }
    }

    /// Add a run. Returns its first page for which there is no room.
    fn push(&mut self, run: page_region) -> Option<u64> {
        if self.vec_len == 0 {
            return None;
        }
        let size = page_size() as u64;
        let categories = run.categories & self.return_mask;
        let pages = ((run.end - run.start) / size).min(self.pages);
        let end = run.start + pages * size;
        match self.waiting.last_mut() {
            _ if pages == 0 => return Some(run.start),
            Some(last) if last.end == run.start && last.categories == categories => last.end = end,
            _ if self.count == self.vec_len => return Some(run.start),
            _ => {
                self.waiting.push(page_region { start: run.start, end, categories });
                self.count += 1;
            }
        }
        self.pages -= pages;
        (end < run.end).then_some(end)
    }

    /// Store those that are complete: all but the last.
    fn store_some(&mut self) -> Result<(), c_int> {
        let last = self.waiting.pop();
        self.store()?;
        self.waiting.extend(last);
        Ok(())
    }

    fn store(&mut self) -> Result<(), c_int> {
        let length = size_of_val(&self.waiting[..]);
        // SAFETY: regions are plain numbers without gaps.
        let bytes = unsafe { std::slice::from_raw_parts(self.waiting.as_ptr().cast::<u8>(), length) };
        kernel::copy_out(self.place, bytes).ok_or(libc::EFAULT)?;
        self.place += length;
        self.waiting.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(inverted: u64, all: u64, any: u64) -> pm_scan_arg {
        // SAFETY: plain numbers, for which zero is a value.
        let none: pm_scan_arg = unsafe { std::mem::zeroed() };
        pm_scan_arg { category_inverted: inverted, category_mask: all, category_anyof_mask: any, ..none }
    }

    #[test]
    fn what_is_left_to_ask_of_dirty_pages_matches_as_all_of_it_does() {
        let masks = [0, SOFT_DIRTY, WRITTEN, SOFT_DIRTY | WRITTEN, SOFT_DIRTY | SWAPPED];
        for inverted in masks {
            for all in masks {
                for any in masks {
                    let asked = asked(inverted, all, any);
                    for categories in [0, WRITTEN, SWAPPED, WRITTEN | SWAPPED] {
                        let wanted = matches(&asked, categories | SOFT_DIRTY);
                        let found = if_dirty(&asked).is_some_and(|left| matches(&left, categories));
                        assert_eq!(found, wanted, "{inverted:x} {all:x} {any:x} of {categories:x}");
                    }
                }
            }
        }
    }

    #[test]
    fn regions_are_joined_and_end_where_the_room_does() {
        let size = page_size() as u64;
        let run = |first: u64, end: u64, categories| page_region {
            start: first * size,
            end: end * size,
            categories,
        };
        let mut room = [run(0, 0, 0); 2];
        let mut asked = asked(0, 0, 0);
        (asked.vec, asked.vec_len, asked.return_mask, asked.max_pages) =
            (room.as_mut_ptr() as u64, 2, WRITTEN, 9);
        let mut regions = Regions::new(&asked);
        assert_eq!(regions.push(run(1, 3, WRITTEN | SWAPPED)), None);
        regions.store_some().unwrap();
        assert_eq!(regions.push(run(3, 5, WRITTEN)), None);
        assert_eq!(regions.push(run(7, 8, 0)), None);
        assert_eq!(regions.push(run(8, 20, 0)), Some(12 * size));
        assert_eq!(regions.push(run(30, 31, 0)), Some(30 * size));
        assert_eq!(regions.push(run(12, 13, 0)), Some(12 * size));
        regions.store().unwrap();
        assert_eq!(regions.count, 2);
        let stored = room.map(|region| (region.start / size, region.end / size, region.categories));
        assert_eq!(stored, [(1, 5, WRITTEN), (7, 12, 0)]);
    }
}
