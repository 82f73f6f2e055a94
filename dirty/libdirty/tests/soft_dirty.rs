// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The back end `soft-dirty`: what it reports, of the own process and of another. On a kernel without the bit
//! these tests only see that it says so; they run for good in a stock Debian kernel.

mod area;

use area::{Area, fork, mismatches, wait};
use libdirty::{BackendKind, Builder, Error, Reason, Tracker};

/// The bits are the process's: one test at a time uses them.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn builder() -> Builder {
    Tracker::builder().backend(BackendKind::SoftDirty)
}

/// Run `test`, unless the kernel has no soft-dirty bit.
fn with_soft_dirty(test: impl FnOnce()) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match builder().own() {
        Err(Error::Rejected { why, .. }) => {
            assert!(why.contains("no soft-dirty bit"), "{why}");
            assert!(std::env::var_os("NEED_SOFT_DIRTY").is_none(), "{why}");
        }
        tracker => {
            drop(tracker.unwrap());
            test();
        }
    }
}

/// A tracker of `area`, at the end of its first round: the first collect reports once what is empty, and no more.
fn tracker(area: &Area) -> Tracker {
    let mut tracker = builder().own().unwrap();
    tracker.watch(area.0).unwrap();
    area.reported_as(Reason::Discarded, &mut tracker);
    tracker
}

fn discarded(area: &Area, tracker: &mut Tracker) -> Vec<usize> {
    area.reported_as(Reason::Discarded, tracker)
}

#[test]
fn reports_the_pages_written_and_arms_them_again() {
    with_soft_dirty(|| {
        let area = Area::private(1200);
        area.write([0, 3, 4, 700]);
        let mut tracker = tracker(&area);
        assert_eq!(area.written(&mut tracker), []);
        area.write([3, 511, 512, 1199]);
        assert_eq!(area.written(&mut tracker), [3, 511, 512, 1199]);
        assert_eq!(area.written(&mut tracker), []);
        area.write([3, 5]);
        assert_eq!(area.written(&mut tracker), [3, 5]);
        assert!(area.read(1000) == 0);
        assert_eq!(area.written(&mut tracker), []);
        area.write(0..1200);
        assert_eq!(area.written(&mut tracker), Vec::from_iter(0..1200));
    });
}

#[test]
fn reports_shared_memory() {
    with_soft_dirty(|| {
        let area = Area::shared(64);
        area.write(0..64);
        let mut tracker = tracker(&area);
        area.write([3]);
        assert_eq!(area.written(&mut tracker), [3]);
        area.discard(8..9); // the content stays, but that is not knowable
        assert_eq!(area.written(&mut tracker), [8]);
        assert_eq!(area.written(&mut tracker), [8]);
        area.read(8);
        assert_eq!(area.written(&mut tracker), []);
    });
}

#[test]
fn reports_discards() {
    with_soft_dirty(|| {
        let area = Area::private(2048);
        area.write(0..1024);
        area.write([1500]);
        let mut tracker = tracker(&area);
        for first in [10, 600, 1500] {
            area.discard(first..first + 1);
            assert_eq!(discarded(&area, &mut tracker), [first], "discarded");
            assert_eq!(area.written(&mut tracker), []);
            area.write([first]);
            assert_eq!(area.written(&mut tracker), [first], "written");
            area.discard(first..first + 1);
            assert_eq!(area.read(first), 0);
            assert_eq!(discarded(&area, &mut tracker), [first], "discarded and read");
            assert_eq!(area.written(&mut tracker), []);
            area.write([first]);
            area.written(&mut tracker);
            area.write([first]);
            area.discard(first..first + 1);
            assert_eq!(discarded(&area, &mut tracker), [first], "written and discarded");
            area.write([first]);
            area.written(&mut tracker);
            area.discard(first..first + 1);
            area.write([first]);
            assert_eq!(area.written(&mut tracker), [first], "discarded and written");
        }
    });
}

#[test]
fn reports_discards_of_huge_pages() {
    with_soft_dirty(|| {
        let area = Area::private(2048);
        area.advise(0..2048, libc::MADV_HUGEPAGE);
        area.write(0..2048);
        let mut tracker = tracker(&area);
        area.write([700]);
        assert!(area.written(&mut tracker).contains(&700)); // with the huge page around it
        area.discard(0..2048);
        assert!((0..2048).all(|page| area.read(page) == 0)); // maps the huge page of zeros
        assert_eq!(discarded(&area, &mut tracker), Vec::from_iter(0..2048));
        assert_eq!(area.written(&mut tracker), []);
    });
}

#[test]
fn arming_more_keeps_what_was_written() {
    with_soft_dirty(|| {
        let area = Area::private(64);
        area.write(0..64);
        let mut tracker = builder().own().unwrap();
        tracker.watch(area.range(0..32)).unwrap();
        area.write([3, 40]);
        tracker.watch(area.range(32..64)).unwrap();
        area.write([50]);
        assert_eq!(area.written(&mut tracker), [3, 50]);
        tracker.unwatch(area.range(8..40)).unwrap();
        area.write([3, 8, 39, 40]);
        assert_eq!(area.written(&mut tracker), [3, 40]);
    });
}

#[test]
fn memory_mapped_anew_is_reported() {
    with_soft_dirty(|| {
        let area = Area::private(64);
        area.write(0..64);
        let mut tracker = tracker(&area);
        let range = area.range(8..16);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces pages of the area, to which no reference exists.
        let again = unsafe {
            libc::mmap(range.start() as *mut _, range.len(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_eq!(again as usize, range.start());
        area.write([9]);
        let reported = area.collect(&mut tracker).0;
        assert!((8..16).all(|page| reported.contains(&page)));
        area.write([10]);
        assert_eq!(area.written(&mut tracker), [10]);
    });
}

#[test]
fn a_live_child_changes_nothing() {
    with_soft_dirty(|| {
        let area = Area::private(64);
        area.write(0..32);
        let mut tracker = tracker(&area);
        let child = fork(|| {
            area.write(0..64);
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        });
        area.write([2, 50]);
        let reported = area.written(&mut tracker);
        assert_eq!(reported, [2, 50]);
        area.discard(3..4);
        assert_eq!(discarded(&area, &mut tracker), [3]);
        // SAFETY: the child of this test.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(wait(child), -libc::SIGKILL);
    });
}

#[test]
fn a_second_tracker_is_refused() {
    with_soft_dirty(|| {
        let first = builder().own().unwrap();
        let refused = builder().own().unwrap_err().to_string();
        assert!(refused.contains("another tracker"), "{refused}");
        drop(first);
        builder().own().unwrap();
    });
}

#[test]
fn writers_on_four_threads_lose_nothing() {
    with_soft_dirty(|| {
        let area = Area::private(256);
        let mut tracker = tracker(&area);
        assert_eq!(mismatches(&area, &mut tracker), 0);
    });
}

#[test]
fn another_process_is_reported_and_goes_on() {
    with_soft_dirty(|| {
        let (area, orders) = (Area::private(64), Area::shared(1));
        area.write(0..64);
        let child = fork(|| {
            let order = &orders.bytes()[0];
            loop {
                match order.load(std::sync::atomic::Ordering::SeqCst) {
                    255 => return 0,
                    0 => std::thread::yield_now(),
                    page => {
                        area.write([usize::from(page)]);
                        order.store(0, std::sync::atomic::Ordering::SeqCst);
                    }
                }
            }
        });
        let write = |page: u8| {
            orders.bytes()[0].store(page, std::sync::atomic::Ordering::SeqCst);
            while orders.bytes()[0].load(std::sync::atomic::Ordering::SeqCst) != 0 {
                std::thread::yield_now();
            }
        };
        let mut tracker = builder().process(child).unwrap();
        tracker.watch(area.0).unwrap();
        for page in [3, 4, 3, 60] {
            write(page);
            assert_eq!(area.written(&mut tracker), [usize::from(page)]);
            assert_eq!(area.written(&mut tracker), []);
        }
        // Somebody else traces it: it cannot be stopped.
        // SAFETY: the child of this test; the requests take numbers only.
        unsafe { libc::ptrace(libc::PTRACE_SEIZE, child, 0, 0) };
        write(7);
        let (reported, reasons) = area.collect(&mut tracker);
        assert_eq!((reported.len(), reasons), (64, vec![Reason::NotStopped]));
        // SAFETY: as above.
        unsafe {
            libc::ptrace(libc::PTRACE_INTERRUPT, child, 0, 0);
            libc::waitpid(child, std::ptr::null_mut(), libc::__WALL);
            libc::ptrace(libc::PTRACE_DETACH, child, 0, 0);
        }
        write(8);
        assert_eq!(area.written(&mut tracker), [8]);
        orders.bytes()[0].store(255, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(wait(child), 0);
        assert_eq!(area.collect(&mut tracker).1, [Reason::Exited]);
    });
}
