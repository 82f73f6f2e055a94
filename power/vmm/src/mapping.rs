// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory from the kernel, unmapped when dropped. It may be shared with KVM or a guest, so it must not be borrowed
//! while the guest runs.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;

use libc::c_int;

/// A mapping that can be read and written.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an address may be used by any thread; references to the bytes need a `&mut`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map zeros, without a file; `flags` are added to MAP_ANONYMOUS.
    ///
    /// # Errors
    /// The system call fails.
    pub fn anonymous(length: usize, flags: c_int) -> io::Result<Self> {
        Self::map(length, flags | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Map a file from `offset` on, shared.
    ///
    /// # Errors
    /// The system call fails.
    pub fn shared(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        let offset = offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        Self::map(length, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    fn map(length: usize, flags: c_int, fd: c_int, offset: libc::off64_t) -> io::Result<Self> {
        // SAFETY: the kernel chooses where, so nothing that exists is replaced.
        let start = unsafe {
            libc::mmap64(ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, length })
    }

    /// Its address, for the kernel, and for memory that changes without the compiler's knowledge.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: it is mapped while `self` lives, and the guest does not run while it is borrowed.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is ours, and borrows of it have ended. It fails only for arguments that mmap did not return.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
