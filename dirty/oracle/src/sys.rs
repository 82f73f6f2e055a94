// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls that operations have in common. What memory they touch is for the caller to say.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::FromRawFd;

use libdirty::page_size;

/// `errno` of a call that returns -1 for failure.
///
/// # Errors
/// That.
pub(crate) fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Map readable and writable memory here.
///
/// # Errors
/// The kernel's word.
pub(crate) fn map(at: usize, length: usize, flags: i32, fd: i32) -> io::Result<i64> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as the caller says, no object lies there.
    check(unsafe { libc::mmap(at as *mut _, length, protection, flags, fd, 0) } as i64)
}

/// A file of known bytes where `TMPDIR` says: on a filesystem of the caller's choice.
///
/// # Errors
/// The kernel's word.
pub(crate) fn temporary_file(length: usize) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let mut file = options.open(std::env::temp_dir())?;
    let page: Vec<u8> = (0..page_size()).map(|byte| (byte % 251) as u8).collect();
    for _ in 0..length / page_size() {
        file.write_all(&page)?;
    }
    Ok(file)
}

/// A pipe: reader, writer.
///
/// # Errors
/// The kernel's word.
pub(crate) fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel fills two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: just returned; nobody else owns them.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// Wait for a child; returns the wait status.
pub(crate) fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: one valid integer.
    check(unsafe { libc::waitpid(pid, &raw mut status, 0) }.into())?;
    Ok(status)
}

/// End a child that was not waited for.
pub(crate) fn end(pid: i32) -> io::Result<()> {
    // SAFETY: a child of ours, as the caller says.
    check(unsafe { libc::kill(pid, libc::SIGKILL) }.into())?;
    wait(pid).map(|_| ())
}
