// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that grows, shrinks and moves a mapping by `mremap(2)` all the time is tracked, and left, again and again:
//! no call of its fails.
//!
//! What it cannot see: a program that also unmaps a neighbour in the same microseconds, as threads of the own process do,
//! in which libdirty itself maps memory and unmaps it.

mod process;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use libdirty::{BackendKind, Dirty, Tracker, page_size};

use process::Killed;

const TIMES: usize = 30;
const MOST: usize = 32 << 20;

/// Those that are asked of a userfaultfd, and work here. (`mprotect` cuts mappings, and says so.)
fn back_ends() -> Vec<BackendKind> {
    let is_one = |kind| matches!(kind, BackendKind::UffdAsync | BackendKind::UffdSync);
    let works = libdirty::survey().into_iter().filter(|finding| finding.rejected.is_none());
    works.map(|finding| finding.backend).filter(|kind| is_one(*kind)).collect()
}

/// Grow a mapping page by page, and let it shrink, until the end; return how many calls there were, and the errors.
fn grow(shared: bool, is_end: impl Fn() -> bool) -> (u64, Vec<std::io::Error>) {
    let (mut calls, mut errors) = (0, Vec::new());
    let mut length = MOST;
    let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    // SAFETY: new memory, of which nobody else knows.
    let mut memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), length, protection, kind | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED);
    while !is_end() {
        let next = if length == MOST { page_size() } else { length + page_size() };
        // SAFETY: all of the mapping and nothing else, and nobody has a reference into it.
        let moved = unsafe { libc::mremap(memory, length, next, libc::MREMAP_MAYMOVE) };
        calls += 1;
        if moved == libc::MAP_FAILED {
            errors.push(std::io::Error::last_os_error());
            continue;
        }
        (memory, length) = (moved, next);
        // SAFETY: the last page of the mapping.
        unsafe { memory.cast::<u8>().add(length - page_size()).write_volatile(1) };
    }
    // SAFETY: as above; it is not used any more.
    unsafe { libc::munmap(memory, length) };
    (calls, errors)
}

/// Say how it went, so that a test of no failures is one of many calls.
fn judge(what: &str, calls: u64, failures: usize, first: &str) {
    println!("{what}: {calls} calls of mremap, {failures} failed {first}");
    assert!(calls > 1000, "{what}: {calls} calls only");
    assert_eq!(failures, 0, "{what}: {failures} of {calls} calls of mremap failed: {first}");
}

#[test]
#[ignore = "a program of another test: grows until its input ends"]
fn grow_until_told() {
    let shared = std::env::var_os("LIBDIRTY_TEST_SHARED").is_some();
    let is_end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            is_end.store(true, Ordering::Relaxed);
        });
        println!("\ngrows");
        let (calls, errors) = grow(shared, || is_end.load(Ordering::Relaxed));
        println!("{calls} {} {}", errors.len(), errors.first().map(ToString::to_string).unwrap_or_default());
    });
}

#[test]
fn another_process_grows() {
    for kind in back_ends() {
        for shared in [false, true] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            if shared {
                command.env("LIBDIRTY_TEST_SHARED", "1");
            }
            let mut target = Killed(
                command
                    .args(["--exact", "grow_until_told", "--ignored", "--nocapture"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap(),
            );
            let mut lines = BufReader::new(target.0.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line == "grows"));
            for _ in 0..TIMES {
                let mut tracker = Tracker::builder().backend(kind).process(target.pid()).unwrap();
                tracker.watch_all().unwrap();
                tracker.collect(&mut Dirty::new()).unwrap();
            }
            drop(target.0.stdin.take());
            let said = lines.next().unwrap();
            let mut words = said.splitn(3, ' ');
            let mut number = || words.next().unwrap().parse::<u64>().unwrap();
            let (calls, failures) = (number(), number());
            let what = format!("{kind}, {}", if shared { "shared" } else { "private" });
            judge(&what, calls, failures as usize, words.next().unwrap());
        }
    }
}
