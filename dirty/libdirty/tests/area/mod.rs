// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A few pages of memory for the tests of one back end: written, discarded, and compared with what was reported.

#![allow(dead_code)] // not every test uses all of it

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use libdirty::{Dirty, PageRange, Reason, Tracker, page_size};

/// A mapping of its own.
pub struct Area(pub PageRange);

impl Area {
    /// Private anonymous memory without content.
    pub fn private(pages: usize) -> Self {
        Area::map(pages, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
    }

    /// Shared anonymous memory.
    pub fn shared(pages: usize) -> Self {
        Area::map(pages, libc::MAP_SHARED)
    }

    /// With a page around it that cannot be used: the kernel joins mappings that touch.
    fn map(pages: usize, flags: i32) -> Self {
        let length = (pages + 2) * page_size();
        let flags = flags | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let area = Area(PageRange::from_length(memory as usize + page_size(), pages * page_size()).unwrap());
        area.protect(0..pages, libc::PROT_READ | libc::PROT_WRITE);
        area
    }

    /// The bytes, shared with whoever writes.
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: mapped until drop, and any byte is a value.
        unsafe { std::slice::from_raw_parts(self.0.start() as *const AtomicU8, self.0.len()) }
    }

    fn byte(&self, page: usize) -> &AtomicU8 {
        &self.bytes()[page * page_size() + 7]
    }

    pub fn read(&self, page: usize) -> u8 {
        self.byte(page).load(Relaxed)
    }

    pub fn write(&self, pages: impl IntoIterator<Item = usize>) {
        pages.into_iter().for_each(|page| self.byte(page).store(self.read(page).wrapping_add(1), Relaxed));
    }

    /// `pages` as a range.
    pub fn range(&self, pages: std::ops::Range<usize>) -> PageRange {
        let start = self.0.start() + pages.start * page_size();
        PageRange::from_length(start, pages.len() * page_size()).unwrap()
    }

    pub fn advise(&self, pages: std::ops::Range<usize>, advice: i32) {
        let range = self.range(pages);
        // SAFETY: the area's own memory, whose content nobody relies on.
        let done = unsafe { libc::madvise(range.start() as *mut _, range.len(), advice) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn discard(&self, pages: std::ops::Range<usize>) {
        self.advise(pages, libc::MADV_DONTNEED);
    }

    pub fn protect(&self, pages: std::ops::Range<usize>, protection: i32) {
        let range = self.range(pages);
        // SAFETY: the area's own memory.
        let done = unsafe { libc::mprotect(range.start() as *mut _, range.len(), protection) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Collect, and return the pages of the area that were reported and all reasons.
    pub fn collect(&self, tracker: &mut Tracker) -> (Vec<usize>, Vec<Reason>) {
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();
        let mut reasons: Vec<_> = dirty.extents().iter().map(|extent| extent.reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let pages = dirty
            .mapped()
            .filter_map(|range| range.intersection(self.0))
            .flat_map(|range| (range.start()..range.end()).step_by(page_size()))
            .map(|address| (address - self.0.start()) / page_size())
            .collect();
        (pages, reasons)
    }

    /// Collect, and return the pages, all of which must have been reported as written.
    pub fn written(&self, tracker: &mut Tracker) -> Vec<usize> {
        self.reported_as(Reason::Written, tracker)
    }

    /// Collect, and return the pages, all of which must have been reported for this one reason.
    pub fn reported_as(&self, reason: Reason, tracker: &mut Tracker) -> Vec<usize> {
        let (pages, reasons) = self.collect(tracker);
        assert!(reasons.iter().all(|other| *other == reason), "{reasons:?}");
        pages
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`; no reference outlives `self`.
        unsafe { libc::munmap((self.0.start() - page_size()) as *mut _, self.0.len() + 2 * page_size()) };
    }
}

/// Two threads write one half of `area` as fast as they can, and two the other half, a few pages for each collect,
/// so that a write which is lost is not made good by the next; meanwhile it is collected into a copy, and once
/// more when they have ended. Returns how many pages of the copy differ from the memory.
pub fn mismatches(area: &Area, tracker: &mut Tracker) -> usize {
    let pages = area.0.pages();
    // SAFETY: as `bytes`, and aligned to pages.
    let words = unsafe { std::slice::from_raw_parts(area.0.start() as *const AtomicU64, area.0.len() / 8) };
    let mut copy = vec![0u64; words.len()];
    let mut update = |tracker: &mut Tracker| {
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();
        for range in dirty.mapped() {
            for at in (range.start() - area.0.start()) / 8..(range.end() - area.0.start()) / 8 {
                copy[at] = words[at].load(Relaxed);
            }
        }
    };
    let (ended, collects) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (ended, collects) = (&ended, &collects);
            let write = move |page: usize| {
                area.bytes()[page * page_size() + thread * 64].fetch_add(1, Relaxed);
            };
            scope.spawn(move || {
                if thread < 2 {
                    while ended.load(SeqCst) < 2 {
                        (0..pages / 2).for_each(write);
                    }
                    return;
                }
                for (step, page) in (pages / 2..pages).cycle().take(pages).enumerate() {
                    while collects.load(SeqCst) < step / 8 {
                        std::thread::yield_now();
                    }
                    write(page);
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
                ended.fetch_add(1, SeqCst);
            });
        }
        while ended.load(SeqCst) < 2 {
            update(tracker);
            collects.fetch_add(1, SeqCst);
        }
    });
    update(tracker);
    let is_other = |page: &usize| {
        let mut places = page * page_size() / 8..(page + 1) * page_size() / 8;
        places.any(|at| copy[at] != words[at].load(Relaxed))
    };
    (0..pages).filter(is_other).count()
}

/// Fork, run `child` there and return its exit status. The child must not return.
pub fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `child` alone and leaves without unwinding into the test harness.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

/// Wait for a child; its exit code, or minus the signal that ended it.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this test.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}
