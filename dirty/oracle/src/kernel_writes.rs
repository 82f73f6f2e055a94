// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that no instruction of the program makes: by the kernel on its behalf, and by other processes.
//!
//! Each returns the bytes written, or the kernel's error; a back end that makes them fail says so in its record.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use io_uring::{IoUring, opcode, squeue, types};

use crate::op::Way;
use crate::sys::{pipe, temporary_file, wait};

/// Have `length` bytes of `value` written at `at`; small enough for a pipe (64 KiB).
///
/// # Errors
/// The kernel's word: `EFAULT` where the memory cannot be written.
pub fn perform(way: Way, at: usize, length: usize, value: u8) -> io::Result<i64> {
    let bytes = vec![value; length];
    match way {
        Way::Read => {
            let (reader, mut writer) = pipe()?;
            writer.write_all(&bytes)?;
            // SAFETY: memory of the arena, as the caller says.
            result(unsafe { libc::read(reader.as_raw_fd(), at as *mut _, length) })
        }
        Way::Vmsplice => {
            let (reader, mut writer) = pipe()?;
            writer.write_all(&bytes)?;
            let piece = libc::iovec { iov_base: at as *mut _, iov_len: length };
            // SAFETY: memory of the arena, as the caller says.
            result(unsafe { libc::vmsplice(reader.as_raw_fd(), &raw const piece, 1, 0) })
        }
        Way::Recvmsg => recvmsg(&bytes, at),
        Way::IoUring => io_uring(&bytes, at),
        Way::ProcessVmWritev | Way::ProcMem => from_child(way, &bytes, at),
        Way::Direct => direct(&bytes, at),
    }
}

fn result(done: isize) -> io::Result<i64> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i64) }
}

fn recvmsg(bytes: &[u8], at: usize) -> io::Result<i64> {
    let (receiver, mut sender) = UnixStream::pair()?;
    sender.write_all(bytes)?;
    // Two pieces, as recvmsg is there for.
    let half = bytes.len() / 2;
    let mut pieces = [
        libc::iovec { iov_base: at as *mut _, iov_len: half },
        libc::iovec { iov_base: (at + half) as *mut _, iov_len: bytes.len() - half },
    ];
    // SAFETY: a header with nothing but the two pieces, which are memory of the arena.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = pieces.as_mut_ptr();
        header.msg_iovlen = pieces.len() as _;
        result(libc::recvmsg(receiver.as_raw_fd(), &raw mut header, 0))
    }
}

fn io_uring(bytes: &[u8], at: usize) -> io::Result<i64> {
    let mut ring = IoUring::new(4)?;
    let source = memory_file()?;
    source.write_all_at(bytes, 0)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    complete(&mut ring, &opcode::Read::new(types::Fd(source.as_raw_fd()), at as *mut u8, length).build())
}

/// An empty file in memory.
pub(crate) fn memory_file() -> io::Result<File> {
    // SAFETY: a constant name; returns a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"source".as_ptr(), libc::MFD_CLOEXEC) };
    result(fd as isize)?;
    // SAFETY: just returned; nobody else owns it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
}

/// Have one request carried out; its result.
pub(crate) fn complete(ring: &mut IoUring, request: &squeue::Entry) -> io::Result<i64> {
    // SAFETY: files and memory that it names outlive the request, which is waited for.
    unsafe { ring.submission().push(request) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let done = ring.completion().next().ok_or_else(|| io::Error::other("no completion"))?.result();
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(done.into()) }
}

/// `EOPNOTSUPP` where the filesystem has no direct I/O.
fn direct(bytes: &[u8], at: usize) -> io::Result<i64> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = temporary_file(bytes.len())?;
    file.write_all_at(bytes, 0)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
    let source = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        _ => error,
    })?;
    // SAFETY: memory of the arena, as the caller says.
    result(unsafe { libc::read(source.as_raw_fd(), at as *mut _, bytes.len()) })
}

/// Write `bytes` into memory of the arena of process `pid`.
///
/// # Errors
/// The kernel's word.
pub fn into_process(pid: i32, way: Way, at: usize, bytes: &[u8]) -> io::Result<i64> {
    if way == Way::ProcMem {
        let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
        return memory.write_at(bytes, at as u64).map(|done| done as i64);
    }
    let local = IoSlice::new(bytes);
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: bytes.len() };
    // SAFETY: reads `bytes`, and writes the other process's arena only.
    result(unsafe { libc::process_vm_writev(pid, (&raw const local).cast(), 1, &raw const remote, 1, 0) })
}

/// A forked child writes into its parent, and reports by its exit code how that went.
fn from_child(way: Way, bytes: &[u8], at: usize) -> io::Result<i64> {
    let parent = std::process::id();
    let path = std::ffi::CString::new(format!("/proc/{parent}/mem")).expect("no zero in it");
    let local = IoSlice::new(bytes);
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; buffers made before the fork.
        unsafe {
            let done = if way == Way::ProcMem {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY);
                libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at as i64)
            } else {
                let remote = libc::iovec { iov_base: at as *mut _, iov_len: bytes.len() };
                libc::process_vm_writev(parent as i32, (&raw const local).cast(), 1, &raw const remote, 1, 0)
            };
            libc::_exit(match done {
                -1 => *libc::__errno_location(),
                done if done == bytes.len() as isize => 0,
                _ => libc::EFAULT, // it stopped within
            });
        }
    }
    result(pid as isize)?;
    let status = wait(pid)?;
    if !libc::WIFEXITED(status) {
        return Err(io::Error::other(format!("the writing child died (wait status {status:#x})")));
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(bytes.len() as i64),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
