// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many mappings, many ranges: nothing may cost the square of their number. No time is judged; the figures are printed
//! for who looks: `cargo test --release --test scale -- --ignored --nocapture`.

use std::time::Instant;

use libdirty::{BackendKind, Dirty, PageRange, Tracker, page_size};

fn map(at: usize, pages: usize, access: i32) -> usize {
    let over = if at == 0 { 0 } else { libc::MAP_FIXED };
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, or over memory that this test has mapped.
    let memory = unsafe { libc::mmap(at as *mut _, pages * page_size(), access, kind | over, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as usize
}

/// A mapping of one written page in every second page.
fn fill(base: usize, mappings: usize) {
    for index in 0..mappings {
        let at = map(base + 2 * index * page_size(), 1, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: just mapped.
        unsafe { (at as *mut u8).write_volatile(1) };
    }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let result = work();
    print!("  {what} {:.3}", since.elapsed().as_secs_f64());
    result
}

/// Two mappings stand for each: the page and the hole behind it. `mprotect` has no more to spend.
const SIZES: [usize; 3] = [3_000, 10_000, 30_000];

fn back_ends() -> Vec<BackendKind> {
    let works = libdirty::survey().into_iter().filter(|finding| finding.rejected.is_none());
    works.map(|finding| finding.backend).collect()
}

fn area(mappings: usize) -> PageRange {
    let base = map(0, 2 * mappings, libc::PROT_NONE);
    fill(base, mappings);
    PageRange::from_length(base, 2 * mappings * page_size()).unwrap()
}

/// Bytes that the heap has given out. (A bitmap of a small mapping is 16 bytes more, elsewhere.)
fn in_heap() -> usize {
    // SAFETY: no preconditions.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

fn unmap(range: PageRange) {
    // SAFETY: memory of this test.
    unsafe { libc::munmap(range.start() as *mut _, range.len()) };
}

#[test]
#[ignore = "a measurement"]
fn mappings_and_ranges() {
    for backend in back_ends() {
        for mappings in SIZES {
            let range = area(mappings);
            let mut tracker = Tracker::builder().backend(backend).own().unwrap();
            let mut dirty = Dirty::new();
            print!("{backend} {mappings} mappings:");
            timed("watch", || tracker.watch(range).unwrap());
            timed("first collect", || tracker.collect(&mut dirty).unwrap());
            timed("idle collect", || tracker.collect(&mut dirty).unwrap());
            fill(range.start(), mappings);
            timed("all replaced", || tracker.collect(&mut dirty).unwrap());
            assert_eq!(dirty.pages(), mappings, "{backend}");
            timed("unwatch", || tracker.unwatch(range).unwrap());
            print!("\n{backend} {mappings} ranges:");
            let part =
                |index| PageRange::from_length(range.start() + 2 * index * page_size(), page_size()).unwrap();
            let before = in_heap();
            timed("watch", || (0..mappings).for_each(|index| tracker.watch(part(index)).unwrap()));
            print!("  bytes each {}", in_heap().saturating_sub(before) / mappings);
            timed("collect", || tracker.collect(&mut dirty).unwrap());
            timed("unwatch", || (0..mappings).for_each(|index| tracker.unwatch(part(index)).unwrap()));
            println!();
            drop(tracker);
            unmap(range);
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn reserved() {
    for backend in back_ends().into_iter().filter(|backend| *backend != BackendKind::Mprotect) {
        for shift in [36, 39, 42] {
            let range = PageRange::from_length(
                map(0, 1 << (shift - 12), libc::PROT_READ | libc::PROT_WRITE),
                1 << shift,
            );
            let range = range.unwrap();
            let mut tracker = Tracker::builder().backend(backend).own().unwrap();
            let mut dirty = Dirty::new();
            print!("{backend} {} GiB reserved:", range.len() >> 30);
            timed("watch", || tracker.watch(range).unwrap());
            timed("first collect", || tracker.collect(&mut dirty).unwrap());
            timed("collect", || tracker.collect(&mut dirty).unwrap());
            println!();
            drop(tracker);
            unmap(range);
        }
    }
}

/// Ten pages written of memory that is all in use, at three sizes; beside it a bare `PAGEMAP_SCAN` over as much. Once in
/// small pages, once in huge ones.
#[test]
#[ignore = "a measurement"]
fn few_dirty_pages() {
    use libdirty::pagemap::{Regions, Scan, scan};
    use linux_raw_sys::general::PAGE_IS_PRESENT;

    for backend in back_ends() {
        for (megabytes, kind) in [64, 512, 2048].into_iter().flat_map(|size| {
            [(size, ("small", libc::MADV_NOHUGEPAGE)), (size, ("huge", libc::MADV_HUGEPAGE))]
        }) {
            let pages = (megabytes << 20) / page_size();
            let range =
                PageRange::from_length(map(0, pages, libc::PROT_READ | libc::PROT_WRITE), megabytes << 20)
                    .unwrap();
            // SAFETY: advice about memory that was just mapped.
            unsafe { libc::madvise(range.start() as *mut _, range.len(), kind.1) };
            let write = |page: usize| {
                // SAFETY: just mapped.
                unsafe { ((range.start() + page * page_size()) as *mut u8).write_volatile(1) };
            };
            (0..pages).for_each(write);
            let mut tracker = Tracker::builder().backend(backend).own().unwrap();
            let mut dirty = Dirty::new();
            print!("{backend} {megabytes} MiB in {} pages:", kind.0);
            timed("watch", || tracker.watch(range).unwrap());
            timed("first collect", || tracker.collect(&mut dirty).unwrap());
            for _ in 0..3 {
                (0..10).for_each(|part| write(part * pages / 10));
                timed("ten pages", || tracker.collect(&mut dirty).unwrap());
                // A huge page may be reported as a whole.
                assert!(dirty.pages() == 10 || kind.0 == "huge", "{backend}: {}", dirty.pages());
            }
            let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
            let (mut regions, what) = (Regions::default(), Scan { all: PAGE_IS_PRESENT, ..Scan::default() });
            timed("bare scan", || {
                let _ = scan(&pagemap, range, what, &mut regions, |_, _| ());
            });
            println!();
            drop(tracker);
            unmap(range);
        }
    }
}
