// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges with several mappings in them, of which one is not like the others.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use libdirty::{BackendKind, Dirty, PageRange, Reason, Tracker, page_size};

/// Those that work here.
fn back_ends() -> Vec<BackendKind> {
    libdirty::survey()
        .into_iter()
        .filter(|finding| finding.rejected.is_none())
        .map(|finding| finding.backend)
        .collect()
}

fn map(at: usize, pages: usize, protection: i32, flags: i32, file: Option<(&File, usize)>) -> usize {
    let (fd, offset) = file.map_or((-1, 0), |(file, page)| (file.as_raw_fd(), page * page_size()));
    // SAFETY: new memory, or over memory that this test has mapped.
    let memory = unsafe {
        libc::mmap(at as *mut _, pages * page_size(), protection, flags, fd, offset as libc::off_t)
    };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as usize
}

fn write(address: usize) {
    // SAFETY: memory that this test has mapped.
    unsafe { (address as *mut u8).write_volatile((address as *mut u8).read_volatile().wrapping_add(1)) };
}

fn is_reported(dirty: &Dirty, address: usize) -> bool {
    dirty.mapped().any(|range| range.contains_address(address))
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[test]
fn a_read_only_neighbour_of_the_same_file_hides_nothing() {
    let page = page_size();
    for backend in back_ends() {
        // SAFETY: a new descriptor, owned here.
        let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"neighbours".as_ptr(), 0)) };
        file.write_all(&vec![1; 32 * page]).unwrap();
        // A second, read-only open of it: its mapping can never be made writable.
        let reading = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let base = map(0, 32, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None);
        map(base, 16, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_FIXED, Some((&reading, 0)));
        map(base + 16 * page, 16, RW, libc::MAP_SHARED | libc::MAP_FIXED, Some((&file, 16)));

        let mut tracker = Tracker::builder().backend(backend).own().unwrap();
        tracker.watch(PageRange::from_length(base, 32 * page).unwrap()).unwrap();
        let mut dirty = Dirty::new();
        for _ in 0..2 {
            write(base + 20 * page);
            tracker.collect(&mut dirty).unwrap();
            assert!(is_reported(&dirty, base + 20 * page), "{backend}: {dirty:?}");
        }
    }
}

#[test]
fn a_page_replaced_far_behind_loses_no_discard_before_it() {
    // More runs than one scan returns, then one page that is not watched any more.
    let (page, pages) = (page_size(), 10240);
    for backend in back_ends().into_iter().filter(|backend| *backend == BackendKind::UffdAsync) {
        let base = map(0, pages, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None);
        let mut tracker = Tracker::builder().backend(backend).own().unwrap();
        tracker.watch(PageRange::from_length(base, pages * page).unwrap()).unwrap();
        (0..pages).step_by(2).for_each(|index| write(base + index * page));
        let over = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        map(base + (pages - 1) * page, 1, RW, over, None);
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();
        assert!(is_reported(&dirty, base));
        tracker.collect(&mut dirty).unwrap();
        // SAFETY: memory of this test.
        unsafe { libc::madvise(base as *mut _, page, libc::MADV_DONTNEED) };
        tracker.collect(&mut dirty).unwrap();
        assert!(is_reported(&dirty, base), "{backend}: {dirty:?}");
    }
}

#[test]
fn memory_that_cannot_be_watched_is_reported_until_it_can() {
    for backend in back_ends().into_iter().filter(|backend| *backend == BackendKind::UffdAsync) {
        let page = page_size();
        let base = map(0, 8, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None);
        let range = PageRange::from_length(base, 8 * page).unwrap();
        let mut first = Tracker::builder().backend(backend).own().unwrap();
        first.watch(range).unwrap();
        let mut second = Tracker::builder().backend(backend).own().unwrap();
        second.watch(range).unwrap();
        let mut dirty = Dirty::new();
        for _ in 0..2 {
            second.collect(&mut dirty).unwrap();
            let reported: Vec<_> =
                dirty.extents().iter().map(|extent| (extent.range, extent.reason)).collect();
            assert_eq!(reported, [(range, Reason::Unsupported)]);
        }
        drop(first);
        second.collect(&mut dirty).unwrap();
        assert_eq!(dirty.extents()[0].reason, Reason::NewMapping);
        // Whoever copied it then may have met something that is gone again.
        second.collect(&mut dirty).unwrap();
        assert_eq!(dirty.zeros().collect::<Vec<_>>(), [range]);
        second.collect(&mut dirty).unwrap();
        assert!(dirty.is_empty());
        write(base);
        second.collect(&mut dirty).unwrap();
        assert_eq!(dirty.pages(), 1);
    }
}

#[test]
fn who_starts_over_is_told_of_everything_once() {
    for backend in back_ends() {
        let memory = map(0, 64, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None);
        (0..64).for_each(|page| write(memory + page * page_size()));
        let range = PageRange::from_length(memory, 64 * page_size()).unwrap();
        let mut tracker = Tracker::builder().backend(backend).own().unwrap();
        tracker.watch(range).unwrap();
        let mut dirty = Dirty::new();
        for start in [false, true, false, true] {
            if start {
                tracker.start_over().unwrap();
            }
            write(memory + 5 * page_size());
            tracker.collect(&mut dirty).unwrap();
            let all = dirty
                .extents()
                .iter()
                .any(|extent| (extent.range, extent.reason) == (range, Reason::NewMapping));
            assert_eq!((all, is_reported(&dirty, memory + 5 * page_size())), (start, true), "{backend}");
            assert_eq!(tracker.ranges(), [range]);
            tracker.collect(&mut dirty).unwrap();
            assert!(dirty.is_empty(), "{backend}: {dirty:?}");
        }
        drop(tracker);
        // SAFETY: nobody has it any more.
        unsafe { libc::munmap(memory as *mut _, range.len()) };
    }
}
