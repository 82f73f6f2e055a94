// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two who would find the writes of one process by its userfaultfd marks: the second is refused, or, where it does not
//! know of the first, harmless.

mod process;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Command, Stdio};

use libdirty::pagemap::{Regions, Scan, scan};
use libdirty::{BackendKind, Dirty, Error, PageRange, Reason, Tracker, page_size};
use linux_raw_sys::general::{
    PAGE_IS_WRITTEN, UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_UNPOPULATED, uffdio_api, uffdio_range,
    uffdio_register, uffdio_writeprotect,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT};

use process::Killed;

const TARGET: &str = "LIBDIRTY_TEST_TARGET";

/// Those of a userfaultfd that work here.
fn back_ends() -> Vec<BackendKind> {
    let is_one = |kind| matches!(kind, BackendKind::UffdAsync | BackendKind::UffdSync);
    let works = libdirty::survey().into_iter().filter(|finding| finding.rejected.is_none());
    works.map(|finding| finding.backend).filter(|kind| is_one(*kind)).collect()
}

#[test]
#[ignore = "a program of another test: tracks a process until it is killed"]
fn track_until_killed() {
    let Some(pid) = std::env::var(TARGET).ok().and_then(|pid| pid.parse().ok()) else { return };
    let _tracker = Tracker::builder().backend(BackendKind::UffdAsync).process(pid).expect("it attaches");
    println!("\nattached");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_second_program_is_refused_and_the_first_is_named() {
    if !back_ends().contains(&BackendKind::UffdAsync) {
        return;
    }
    let target = Killed(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = target.pid();
    let mut first = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "track_until_killed", "--ignored", "--nocapture"])
            .env(TARGET, pid.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let output = BufReader::new(first.0.stdout.take().unwrap());
    assert!(output.lines().map_while(Result::ok).any(|line| line == "attached"));
    for backend in back_ends() {
        let refused = Tracker::builder().backend(backend).process(pid);
        let Err(Error::Rejected { why, .. }) = refused else { panic!("{backend}: {refused:?}") };
        assert!(why.contains(&format!("tracked already, by process {}", first.pid())), "{why}");
    }
    drop(first);
    // Trackers of one program share.
    let trackers = [0, 1].map(|_| Tracker::builder().backend(BackendKind::UffdAsync).process(pid).unwrap());
    drop(trackers);
}

/// A program's own userfaultfd, as it would make one.
struct Own(File);

impl Own {
    fn new() -> Self {
        // SAFETY: takes a number and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | 1) };
        assert!(fd >= 0);
        // SAFETY: the kernel has just returned it.
        let own = Own(unsafe { File::from_raw_fd(fd as i32) });
        let features = (UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED).into();
        assert_eq!(own.ioctl(UFFDIO_API, &mut uffdio_api { api: 0xaa, features, ioctls: 0 }), 0);
        own
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> i32 {
        // SAFETY: every caller passes the struct that its request reads and writes.
        unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), std::ptr::from_mut(argument)) }
    }

    fn watch(&self, range: PageRange) {
        let raw = || uffdio_range { start: range.start() as u64, len: range.len() as u64 };
        let mut register = uffdio_register { range: raw(), mode: 2, ioctls: 0 };
        assert_eq!(self.ioctl(UFFDIO_REGISTER, &mut register), 0);
        assert_eq!(self.ioctl(UFFDIO_WRITEPROTECT, &mut uffdio_writeprotect { range: raw(), mode: 1 }), 0);
    }
}

/// Pages without a mark, by the kernel.
fn written(range: PageRange) -> usize {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let what = Scan { all: PAGE_IS_WRITTEN, ..Scan::default() };
    let mut pages = 0;
    scan(&pagemap, range, what, &mut Regions::default(), |found, _| pages += found.pages()).unwrap();
    pages
}

fn map(at: usize, pages: usize) -> PageRange {
    let over = if at == 0 { 0 } else { libc::MAP_FIXED };
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
    // SAFETY: new memory, or over memory that this test has mapped.
    let memory =
        unsafe { libc::mmap(at as *mut _, pages * page_size(), access, kind | over, -1, 0) } as usize;
    PageRange::from_length(memory, pages * page_size()).unwrap()
}

#[test]
fn memory_that_the_program_watches_by_itself_is_left_alone_and_reported() {
    for backend in back_ends() {
        let range = map(0, 64);
        let mut tracker = Tracker::builder().backend(backend).own().unwrap();
        tracker.watch(range).unwrap();
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();
        // The same kind of memory at the same place, but another's now.
        map(range.start(), 64);
        let own = Own::new();
        own.watch(range);
        assert_eq!(written(range), 0);
        for page in 0..10 {
            // SAFETY: memory of this test.
            unsafe { ((range.start() + page * page_size()) as *mut u8).write_volatile(1) };
        }
        for _ in 0..3 {
            tracker.collect(&mut dirty).unwrap();
            let reported: Vec<_> =
                dirty.extents().iter().map(|extent| (extent.range, extent.reason)).collect();
            assert_eq!(reported, [(range, Reason::Unsupported)], "{backend}");
            assert_eq!(written(range), 10, "{backend}: the marks are the program's");
        }
        drop(tracker);
        assert_eq!(written(range), 10, "{backend}");
        // SAFETY: as above.
        unsafe { (range.start() as *mut u8).add(20 * page_size()).write_volatile(1) };
        assert_eq!(written(range), 11, "{backend}: it watches still");
    }
}
