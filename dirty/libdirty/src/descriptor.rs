// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors in a program that may close them: with `closefrom(3)`, or because it closes all that it does not know.
//! Another file may be given the number then. It must not be taken for ours: not read (what it says would count as the
//! kernel's), not written, and not closed.
//!
//! The file is known by its device and inode. Files that share one (some of the kernel's anonymous inodes) cannot be
//! distinguished. Nothing is promised for a program that closes descriptors while a call of this library runs.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// An open file, and which one.
pub(crate) struct Descriptor<T: AsFd> {
    file: ManuallyDrop<T>,
    identity: (u64, u64),
}

impl<T: AsFd> Descriptor<T> {
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn new(file: T) -> io::Result<Self> {
        let identity = identity(&file)?;
        Ok(Descriptor { file: ManuallyDrop::new(file), identity })
    }

    /// Whether the number still stands for the file.
    pub(crate) fn is_intact(&self) -> bool {
        identity(&*self.file).is_ok_and(|now| now == self.identity)
    }
}

impl<T: AsFd> Deref for Descriptor<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.file
    }
}

impl<T: AsFd> AsFd for Descriptor<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<T: AsFd> Drop for Descriptor<T> {
    fn drop(&mut self) {
        if self.is_intact() {
            // SAFETY: nobody uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

impl<T: AsFd> fmt::Debug for Descriptor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({})", self.file.as_fd().as_raw_fd())
    }
}

/// Device and inode.
fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    // SAFETY: the struct is plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fills the struct.
    if unsafe { libc::fstat(file.as_fd().as_raw_fd(), &raw mut stat) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn a_number_that_was_given_to_another_file_is_left_alone() {
        let ours = Descriptor::new(File::open("/proc/self/maps").unwrap()).unwrap();
        assert!(ours.is_intact());
        let mut theirs = File::open("/proc/self/status").unwrap();
        // SAFETY: the program closes a descriptor that it does not know, and gives its number to a file of its own.
        let number = unsafe { libc::dup2(theirs.as_raw_fd(), ours.as_raw_fd()) };
        assert!(!ours.is_intact());
        drop(ours);
        // SAFETY: asks only.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0, "it was closed");
        assert!(theirs.read(&mut [0]).is_ok());
        // SAFETY: this test's own.
        unsafe { libc::close(number) };
    }
}
