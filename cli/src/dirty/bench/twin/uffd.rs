// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The few userfaultfd calls that two twins share.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use libdirty::PageRange;
use linux_raw_sys::general::{
    UFFD_USER_MODE_ONLY, uffdio_api, uffdio_range, uffdio_register, uffdio_writeprotect,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WRITEPROTECT};

/// A userfaultfd that write-protects.
pub(super) struct Uffd(pub(super) OwnedFd);

impl Uffd {
    pub(super) fn open(features: u32) -> Result<Self> {
        let flags = libc::O_CLOEXEC | UFFD_USER_MODE_ONLY.cast_signed();
        // SAFETY: takes a number and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error);
        // SAFETY: the kernel has just returned this descriptor; it has no other owner.
        let uffd = Uffd(unsafe { OwnedFd::from_raw_fd(fd.context("userfaultfd(2)")?) });
        let mut api = uffdio_api { api: 0xAA, features: features.into(), ioctls: 0 };
        uffd.ioctl(UFFDIO_API, &mut api).context("UFFDIO_API")?;
        Ok(uffd)
    }

    pub(super) fn register(&self, range: PageRange) -> Result<()> {
        const MODE_WP: u64 = 1 << 1;
        let mut register = uffdio_register { range: raw(range), mode: MODE_WP, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut register).context("UFFDIO_REGISTER")
    }

    pub(super) fn unregister(&self, range: PageRange) {
        self.ioctl(UFFDIO_UNREGISTER, &mut raw(range)).expect("what was registered can be unregistered");
    }

    /// Protect, or lift the protection and wake waiting threads.
    pub(super) fn protect(&self, range: PageRange, protect: bool) -> io::Result<()> {
        let mut arg = uffdio_writeprotect { range: raw(range), mode: u64::from(protect) };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut arg)
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: every caller passes the struct that its request reads and writes.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), std::ptr::from_mut(argument)) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn raw(range: PageRange) -> uffdio_range {
    uffdio_range { start: range.start() as u64, len: range.len() as u64 }
}
