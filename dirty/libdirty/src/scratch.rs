// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A few pages of private memory, to try on them what the kernel does.

use std::io;

use crate::extent::{PageRange, page_size};

/// Untouched pages; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PageRange);

impl Scratch {
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new(pages: usize) -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let length = pages * page_size();
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Scratch(PageRange::trusted(memory as usize, memory as usize + length)))
    }

    pub(crate) fn range(&self) -> PageRange {
        self.0
    }

    pub(crate) fn read(&self, page: usize) -> u8 {
        // SAFETY: within the mapping, which lives as long as `self`; volatile, for only the access counts.
        unsafe { self.byte(page).read_volatile() }
    }

    pub(crate) fn write(&self, page: usize) {
        // SAFETY: as in `read`.
        unsafe { self.byte(page).write_volatile(self.read(page).wrapping_add(1)) };
    }

    fn byte(&self, page: usize) -> *mut u8 {
        assert!(page < self.0.pages());
        (self.0.start() + page * page_size()) as *mut u8
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; no reference to it exists.
        unsafe { libc::munmap(self.0.start() as *mut _, self.0.len()) };
    }
}
