// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The back end `mprotect`: what it reports, and how it works with the program's own SIGSEGV handler.

mod area;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use area::{Area, fork, mismatches, wait};
use libdirty::{BackendKind, Reason, Tracker, page_size};

fn tracker(area: &Area) -> Tracker {
    let mut tracker = Tracker::builder().backend(BackendKind::Mprotect).own().unwrap();
    tracker.watch(area.0).unwrap();
    tracker
}

#[test]
fn reports_the_pages_written_and_arms_them_again() {
    for area in [Area::private(1200), Area::shared(1200)] {
        area.write([0, 3, 4, 700]);
        let mut tracker = tracker(&area);
        assert_eq!(area.written(&mut tracker), []);
        area.write([3, 511, 512, 1199]);
        assert_eq!(area.written(&mut tracker), [3, 511, 512, 1199]);
        assert_eq!(area.written(&mut tracker), []);
        area.write([3, 5]);
        assert_eq!(area.written(&mut tracker), [3, 5]);
        area.write(0..1200);
        assert_eq!(area.written(&mut tracker), Vec::from_iter(0..1200));
        area.write([1000]);
        assert_eq!(area.written(&mut tracker), [1000]);
    }
}

#[test]
fn reports_pages_far_apart_in_a_large_range() {
    let area = Area::private(1 << 20);
    let mut tracker = tracker(&area);
    let pages = [0, 8191, 8192, 300_000, (1 << 20) - 1];
    for _ in 0..2 {
        area.write(pages);
        assert_eq!(area.written(&mut tracker), pages);
    }
    area.discard(8192..8193);
    assert_eq!(area.written(&mut tracker), [8192]);
}

#[test]
fn reports_discards() {
    let area = Area::private(2048);
    area.write(0..1024); // two blocks that are full, two that are empty
    area.write([1500]);
    let mut tracker = tracker(&area);
    for first in [10, 600, 1500] {
        area.discard(first..first + 1);
        assert_eq!(area.written(&mut tracker), [first], "discarded");
        assert_eq!(area.written(&mut tracker), []);
        area.write([first]);
        assert_eq!(area.written(&mut tracker), [first], "written");
        area.discard(first..first + 1);
        assert_eq!(area.read(first), 0);
        assert_eq!(area.written(&mut tracker), [first], "discarded and read");
        assert_eq!(area.written(&mut tracker), []);
        area.write([first]);
        assert_eq!(area.written(&mut tracker), [first]);
        area.write([first]);
        area.discard(first..first + 1);
        assert_eq!(area.written(&mut tracker), [first], "written and discarded");
        area.write([first]);
        assert_eq!(area.written(&mut tracker), [first]);
        area.discard(first..first + 1);
        area.write([first]);
        assert_eq!(area.written(&mut tracker), [first], "discarded and written");
        assert_eq!(area.written(&mut tracker), []);
    }
    area.discard(0..1024);
    assert_eq!(area.written(&mut tracker), Vec::from_iter(0..1024));
    assert!((0..2048).filter(|page| *page != 1500).all(|page| area.read(page) == 0));
    assert_eq!(area.written(&mut tracker), [], "pages that were only read");
}

#[test]
fn reports_discards_of_huge_pages() {
    let area = Area::private(2048);
    area.advise(0..2048, libc::MADV_HUGEPAGE);
    area.write(0..2048);
    let mut tracker = tracker(&area);
    area.write([700]);
    assert_eq!(area.written(&mut tracker), [700]);
    area.discard(0..2048);
    assert!((0..2048).all(|page| area.read(page) == 0)); // maps the huge page of zeros
    assert_eq!(area.written(&mut tracker), Vec::from_iter(0..2048));
    assert_eq!(area.written(&mut tracker), []);
}

#[test]
fn a_child_writes_undisturbed_and_its_parent_goes_on() {
    let area = Area::private(64);
    area.write(0..32);
    let mut tracker = tracker(&area);
    area.write([1]);
    let (mut pipe, mut byte) = ([0; 2], [0u8]);
    // SAFETY: makes a pipe.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let child = fork(|| {
        area.write(0..64);
        // A tracker of its own, on memory that was armed before it was born.
        let mut own = Tracker::builder().backend(BackendKind::Mprotect).own().unwrap();
        own.watch(area.0).unwrap();
        area.write([2, 40]);
        let reported = area.written(&mut own);
        // SAFETY: waits for the parent.
        unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) };
        i32::from(reported != [2, 40])
    });
    area.write([2, 50]);
    assert_eq!(area.written(&mut tracker), [1, 2, 50]);
    area.discard(3..4);
    assert_eq!(area.written(&mut tracker), [3], "with pages that the child shares");
    // SAFETY: lets the child go.
    unsafe { libc::write(pipe[1], byte.as_ptr().cast(), 1) };
    assert_eq!(wait(child), 0);
}

#[test]
fn two_trackers_do_not_disturb_each_other() {
    let area = Area::private(64);
    area.write(0..64);
    let mut first = tracker(&area);
    let mut second = Tracker::builder().backend(BackendKind::Mprotect).own().unwrap();
    second.watch(area.range(32..64)).unwrap();
    area.write([10, 40]);
    assert_eq!(area.written(&mut first), [10, 40]);
    area.write([41]);
    assert_eq!(area.written(&mut second), [40, 41]);
    assert_eq!(area.written(&mut first), [41]);
    drop(first);
    area.write([11, 42]);
    assert_eq!(area.written(&mut second), [42]);
    second.unwatch(area.range(40..50)).unwrap();
    area.write(32..64);
    assert_eq!(area.written(&mut second), Vec::from_iter((32..40).chain(50..64)));
    drop(second);
    area.write(0..64);
}

#[test]
fn protections_of_the_program_are_kept() {
    let area = Area::private(64);
    area.write(0..64);
    let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    area.protect(0..8, read);
    let mut tracker = tracker(&area);
    assert_eq!(
        wait(fork(|| {
            area.write([0]);
            0
        })),
        -libc::SIGSEGV,
        "it was read-only before"
    );
    area.protect(0..8, write);
    area.write([0]);
    let (reported, reasons) = area.collect(&mut tracker);
    assert_eq!((reported, reasons), (Vec::from_iter(0..8), vec![Reason::ProtectionChanged]));
    area.write([1]);
    assert_eq!(area.written(&mut tracker), [1]);
    area.protect(16..24, libc::PROT_NONE);
    let (reported, reasons) = area.collect(&mut tracker);
    assert_eq!((reported, reasons), (Vec::from_iter(16..24), vec![Reason::ProtectionChanged]));
    assert_eq!(
        wait(fork(|| {
            area.write([16]);
            0
        })),
        -libc::SIGSEGV
    );
    drop(tracker);
    assert_eq!(
        wait(fork(|| {
            area.write([16]);
            0
        })),
        -libc::SIGSEGV,
        "it stays so"
    );
    area.write((0..16).chain(24..64));
}

#[test]
fn memory_mapped_anew_is_reported() {
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
    assert_eq!(area.collect(&mut tracker).0, Vec::from_iter(8..16));
    area.write([10]);
    assert_eq!(area.written(&mut tracker), [10]);
}

#[test]
fn alternate_pages_beyond_the_limit_of_mappings_overflow() {
    let end = alone("alternate_pages_beyond_the_limit_of_mappings_overflow", || {
        let area = Area::private(200_000);
        let mut tracker = tracker(&area);
        area.write((0..200_000).step_by(2));
        let (reported, reasons) = area.collect(&mut tracker);
        assert!(reasons.contains(&Reason::Overflow));
        assert_eq!(reported.len(), 200_000);
        area.write([4, 5]);
        assert_eq!(area.written(&mut tracker), [4, 5]);
    });
    assert!(end.is_none_or(|end| end == 0));
}

#[test]
fn writers_on_four_threads_lose_nothing() {
    let area = Area::private(256);
    let mut tracker = tracker(&area);
    assert_eq!(mismatches(&area, &mut tracker), 0);
}

#[test]
fn other_ways_to_write_do_as_documented() {
    let area = Area::private(8);
    area.write(0..8);
    let mut tracker = tracker(&area);
    let mut byte = 7u8;
    let iovec = |base: *mut c_void| libc::iovec { iov_base: base, iov_len: 1 };
    let (from, to) = (iovec((&raw mut byte).cast()), iovec((area.0.start() + page_size()) as *mut c_void));
    // SAFETY: one byte of the test, and one of the area.
    let written = unsafe { libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0) };
    assert_eq!(written, -1, "it respects the protection");
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    std::os::unix::fs::FileExt::write_all_at(&memory, &[7], area.0.start() as u64).unwrap();
    assert_eq!(area.bytes()[0].load(std::sync::atomic::Ordering::Relaxed), 7);
    assert_eq!(area.written(&mut tracker), [], "it does not, and goes unseen");
}

#[test]
fn kernel_writes_to_armed_memory_fail() {
    let area = Area::private(8);
    area.write(0..8);
    let mut tracker = tracker(&area);
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let read = |page: usize| {
        let at = (area.0.start() + page * page_size()) as *mut c_void;
        // SAFETY: the kernel writes the area, of which any byte is a value.
        unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), at, 16) }
    };
    assert_eq!(read(1), -1);
    area.write([1]);
    assert_eq!(read(1), 16);
    assert_eq!(area.written(&mut tracker), [1]);
}

/// Faults that reached the program's handler, and the page that it opened.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn with_details(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: what the kernel passes to a handler.
    let page = unsafe { (*info).si_addr() } as usize & !(page_size() - 1);
    // SAFETY: opens a page of the test.
    unsafe { libc::mprotect(page as *mut _, page_size(), libc::PROT_READ | libc::PROT_WRITE) };
    CAUGHT.fetch_add(1, SeqCst);
}

extern "C" fn plain(signal: c_int) {
    // SAFETY: ends the process; nothing else is left to do.
    unsafe { libc::_exit(40 + signal) }
}

fn install(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: plain numbers; the handlers of this test live as long as it.
    unsafe {
        let (mut action, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut old);
        old
    }
}

fn installed() -> usize {
    // SAFETY: asks only.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now);
        now.sa_sigaction
    }
}

/// Run a test in a process of its own, where no other installs handlers or needs mappings. Returns how it ended.
fn alone(name: &str, test: impl FnOnce()) -> Option<i32> {
    if std::env::var_os("ALONE").is_some() {
        test();
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program)
        .args([name, "--exact", "--nocapture"])
        .env("ALONE", "1")
        .output()
        .unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    let end = output.status.code().or(signal.map(|signal| -signal));
    if end == Some(101) {
        panic!("{}", String::from_utf8_lossy(&output.stderr));
    }
    end
}

#[test]
fn the_handler_from_before_gets_what_is_not_ours() {
    let handler = with_details as *const () as usize;
    let end = alone("the_handler_from_before_gets_what_is_not_ours", || {
        install(handler, libc::SA_SIGINFO);
        let (area, other) = (Area::private(8), Area::private(1));
        area.write(0..8);
        let mut tracker = tracker(&area);
        assert_ne!(installed(), handler);
        other.protect(0..1, libc::PROT_NONE);
        other.write([0]);
        assert_eq!(CAUGHT.load(SeqCst), 1);
        area.write([3]);
        assert_eq!(CAUGHT.load(SeqCst), 1, "ours");
        assert_eq!(area.written(&mut tracker), [3]);
        drop(tracker);
        // Ours stays, for faults that are on their way; what is not ours still arrives.
        other.protect(0..1, libc::PROT_NONE);
        other.write([0]);
        assert_eq!(CAUGHT.load(SeqCst), 2);
    });
    assert!(end.is_none_or(|end| end == 0));
}

#[test]
fn a_handler_without_details_is_called_too() {
    let end = alone("a_handler_without_details_is_called_too", || {
        install(plain as *const () as usize, 0);
        let area = Area::private(8);
        let _tracker = tracker(&area);
        // SAFETY: the fault is the test.
        unsafe { (8 as *mut u8).write_volatile(1) };
    });
    assert_eq!(end, Some(40 + libc::SIGSEGV));
}

#[test]
fn faults_end_the_process_where_they_would_have() {
    for (before, sent, ends) in [
        (libc::SIG_DFL, false, -libc::SIGSEGV),
        (libc::SIG_IGN, false, -libc::SIGSEGV),
        (libc::SIG_DFL, true, -libc::SIGSEGV),
        (libc::SIG_IGN, true, 0),
    ] {
        let child = fork(|| {
            install(before, 0);
            let area = Area::private(8);
            let _tracker = tracker(&area);
            // SAFETY: the fault is the test.
            unsafe {
                if sent {
                    libc::raise(libc::SIGSEGV);
                } else {
                    (8 as *mut u8).write_volatile(1);
                }
            }
            0
        });
        assert_eq!(wait(child), ends, "{before} {sent}");
    }
}

static ABOVE: AtomicUsize = AtomicUsize::new(0);
static BELOW: AtomicUsize = AtomicUsize::new(0);

/// Installed above ours, passes everything on.
extern "C" fn passes_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    ABOVE.fetch_add(1, SeqCst);
    // SAFETY: the handler that was installed before, called as the kernel would.
    unsafe {
        let below: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            std::mem::transmute(BELOW.load(SeqCst));
        below(signal, info, context);
    }
}

#[test]
fn a_handler_installed_above_ours_is_called_and_passes_faults_on() {
    let end = alone("a_handler_installed_above_ours_is_called_and_passes_faults_on", || {
        install(with_details as *const () as usize, libc::SA_SIGINFO);
        let (area, other) = (Area::private(8), Area::private(1));
        area.write(0..8);
        let mut tracker = tracker(&area);
        let ours = install(passes_on as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
        BELOW.store(ours.sa_sigaction, SeqCst);
        area.write([3]);
        assert_eq!(ABOVE.load(SeqCst), 1);
        let (reported, reasons) = area.collect(&mut tracker);
        assert_eq!((reported.len(), reasons), (8, vec![Reason::ProtectionChanged]));
        assert_eq!(installed(), ours.sa_sigaction, "ours is on top again");
        other.protect(0..1, libc::PROT_NONE);
        other.write([0]); // ours, theirs, ours, and the first
        assert_eq!((ABOVE.load(SeqCst), CAUGHT.load(SeqCst)), (2, 1));
        area.write([4]);
        assert_eq!(area.written(&mut tracker), [4]);
    });
    assert!(end.is_none_or(|end| end == 0));
}
