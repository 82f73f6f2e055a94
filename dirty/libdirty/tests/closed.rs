// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that closes every descriptor that it does not know, as daemons do, and opens files of its own: these are
//! left as they are, and the tracker says that it is of no use any more. Alone in its program: all descriptors go.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::FromRawFd;

use libdirty::{BackendKind, Dirty, PageRange, Tracker, page_size};

/// How many descriptors a tracker may have.
const NUMBERS: i32 = 64;

fn all_pages(count: usize) -> PageRange {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (length, access) = (count * page_size(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new private mapping.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    PageRange::from_length(memory as usize, length).unwrap()
}

#[test]
fn files_that_got_the_numbers_are_left_alone() {
    let works = libdirty::survey().into_iter().filter(|finding| finding.rejected.is_none());
    let backends: Vec<BackendKind> = works.map(|finding| finding.backend).collect();
    for backend in backends {
        // SAFETY: asks for the lowest number that is free.
        let first = unsafe { libc::dup(0) };
        // SAFETY: this test's own.
        unsafe { libc::close(first) };
        let range = all_pages(16);
        let mut tracker = Tracker::builder().backend(backend).own().unwrap();
        tracker.watch(range).unwrap();
        // SAFETY: what closefrom(3) does; none of the tracker's descriptors is used by this test.
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
        // Memory files, each in one of the numbers, with text in it.
        let mut files: Vec<File> = Vec::new();
        for _ in 0..NUMBERS {
            // SAFETY: a name that ends in 0; returns a new descriptor.
            let number = unsafe { libc::memfd_create(c"own".as_ptr(), 0) };
            assert!(number >= 0);
            // SAFETY: just returned.
            let mut file = unsafe { File::from_raw_fd(number) };
            std::io::Write::write_all(&mut file, &[7; 1 << 16]).unwrap();
            file.rewind().unwrap();
            files.push(file);
        }
        let refused = tracker.collect(&mut Dirty::new()).expect_err("its descriptors are other files");
        assert_eq!(refused.errno(), libc::EBADF, "{backend}: {refused}");
        drop(tracker);
        for mut file in files {
            assert_eq!(file.stream_position().unwrap_or_else(|error| panic!("{backend}: {error}")), 0);
            let mut text = Vec::new();
            file.read_to_end(&mut text).unwrap();
            assert!(text == [7; 1 << 16], "{backend}");
        }
    }
}
