// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that the kernel has pinned once and writes at any time later, as a device does: a buffer registered with
//! io_uring, into which it reads a file. No page table is looked at when it writes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, opcode, types};

use crate::kernel_writes::{complete, memory_file};

/// Pinned until it is dropped.
pub struct Pinned {
    ring: IoUring,
    source: File,
    at: usize,
    length: u32,
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes at {:#x})", self.length, self.at)
    }
}

impl Pinned {
    /// Pin `length` bytes at `at`, memory of the arena.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn new(at: usize, length: usize) -> io::Result<Self> {
        let ring = IoUring::new(4)?;
        let buffer = libc::iovec { iov_base: at as *mut _, iov_len: length };
        // SAFETY: the kernel keeps the pages for as long as it may write them, whatever is mapped there meanwhile.
        unsafe { ring.submitter().register_buffers(&[buffer]) }?;
        let length = u32::try_from(length).map_err(io::Error::other)?;
        Ok(Pinned { ring, source: memory_file()?, at, length })
    }

    /// Have the kernel write every byte; returns how many.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn write(&mut self, value: u8) -> io::Result<i64> {
        self.source.write_all_at(&vec![value; self.length as usize], 0)?;
        let source = types::Fd(self.source.as_raw_fd());
        let read = opcode::ReadFixed::new(source, self.at as *mut u8, self.length, 0).build();
        complete(&mut self.ring, &read)
    }
}
