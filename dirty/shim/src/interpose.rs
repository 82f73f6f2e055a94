// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions that take the place of the C library's.
//!
//! Each of them is on the way of every file of the program: it looks whether the descriptor may be ours, and if not,
//! calls the original. Nothing here has a destructor on that way, for a cancelled thread unwinds through it.
//!
//! # Safety
//! Every function has the contract of the function of the C library whose name it has.

#![allow(clippy::missing_safety_doc)] // one contract for all, above

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{iovec, mode_t, off64_t, size_t, ssize_t};

use crate::answer::{self, Entries};
use crate::files;
use crate::hold;
use crate::kernel::{self, errno};
use crate::known::{Kind, Known};
use crate::lock;
use crate::own;
use crate::real;
use crate::scan;

fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// After a successful call that made descriptor `fd`: enter it in the table by `enter`; if that cannot be done, the
/// call fails with that error, for the file could not be answered.
fn made(fd: c_int, enter: impl FnOnce() -> Result<(), c_int>) -> c_int {
    if fd < 0 || lock::is_held_here() {
        return fd;
    }
    let before = errno();
    let entered = enter();
    set_errno(before);
    let Err(error) = entered else { return fd };
    // SAFETY: made a moment ago; nobody else knows it.
    unsafe { real::close(fd) };
    set_errno(error);
    -1
}

macro_rules! opens {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!("See `", stringify!($name), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's arguments.
            let fd = unsafe { real::$name($($argument),*) };
            made(fd, || files::opened(fd))
        }
    )*};
}

opens! {
    open(path: *const c_char, flags: c_int, mode: mode_t);
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(directory: c_int, path: *const c_char, flags: c_int);
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int);
}

/// See `close` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if files::is_candidate(fd) {
        // Before the number can be another file's.
        files::forget(fd);
    }
    // SAFETY: the caller's arguments.
    unsafe { real::close(fd) }
}

/// `new` was made from `old` by a call that succeeded, unless it is negative.
fn copied(old: c_int, new: c_int) -> c_int {
    if new == old || !(files::is_candidate(old) || files::is_candidate(new)) {
        return new;
    }
    made(new, || files::copied(old, new))
}

/// See `dup` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    copied(fd, unsafe { real::dup(fd) })
}

/// See `dup2` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, onto: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    copied(fd, unsafe { real::dup2(fd, onto) })
}

/// See `dup3` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    copied(fd, unsafe { real::dup3(fd, onto, flags) })
}

fn is_copy(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// See `fcntl` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if is_copy(command) { copied(fd, result) } else { result }
}

/// See `fcntl64` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::fcntl64(fd, command, argument) };
    if is_copy(command) { copied(fd, result) } else { result }
}

/// See `ioctl` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if request == scan::PAGEMAP_SCAN
        && files::is_candidate(fd)
        && !lock::is_held_here()
        && let Some(known) = files::known(fd).filter(|known| known.kind == Kind::Pagemap)
    {
        let answer = AssertUnwindSafe(|| scan::answer(fd, known, argument));
        // Neither after a fork that lost the lock nor after a panic is there an answer.
        let answer = lock::hold(|| catch_unwind(answer).unwrap_or(Err(libc::EIO))).unwrap_or(Err(libc::EIO));
        return answer.unwrap_or_else(|error| {
            set_errno(error);
            -1
        });
    }
    // SAFETY: the caller's arguments.
    unsafe { real::ioctl(fd, request, argument) }
}

/// See `ptrace` of the C library.
///
/// Who traces a process keeps a holder from attaching to it, so a holder is asked first. What `ptrace` returns is the
/// original's to make: it is a value for some requests.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ptrace(request: c_int, pid: c_int, address: usize, data: usize) -> c_long {
    const PTRACE_ATTACH: c_int = 16;
    const PTRACE_SEIZE: c_int = 0x4206;
    if matches!(request, PTRACE_ATTACH | PTRACE_SEIZE) && !lock::is_held_here() && hold::answers_for(pid) {
        lock::hold(|| catch_unwind(|| hold::prepare(pid)));
    }
    // SAFETY: the caller's arguments.
    unsafe { real::ptrace(request, pid, address, data) }
}

/// Where a read begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// At the file's position, which it moves on.
    Position,
    Offset(off64_t),
}

/// Read entries of a pagemap: `read` reads from an offset, or from the file's position, into the pieces of `vector`.
/// `None` if `fd` is no pagemap of ours.
unsafe fn read_pagemap(
    fd: c_int,
    from: From,
    vector: &[iovec],
    read: impl FnOnce(From) -> ssize_t,
) -> Option<ssize_t> {
    if lock::is_held_here() {
        return None;
    }
    let known = files::known(fd).filter(|known| known.kind == Kind::Pagemap)?;
    lock::cancellation_point();
    let done = lock::hold(|| {
        let offset = match from {
            // SAFETY: plain numbers.
            From::Position => unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) },
            From::Offset(offset) => offset,
        };
        // The entries and the answer must be of the same pages, also if another thread moves the position.
        let is_valid = offset >= 0;
        // SAFETY: the caller's pieces.
        if let Some(length) = known.pid.and_then(|pid| unsafe { own::read(pid, offset, vector) }) {
            if from == From::Position {
                // SAFETY: plain numbers.
                unsafe { libc::lseek64(fd, offset + length as off64_t, libc::SEEK_SET) };
            }
            return Ok(length as ssize_t);
        }
        let length = if is_valid { read(From::Offset(offset)) } else { read(from) };
        if length <= 0 {
            return if length < 0 { Err(errno()) } else { Ok(0) };
        }
        let known = if is_valid { known } else { Known { pid: None, ..known } };
        if is_valid && from == From::Position {
            // SAFETY: plain numbers.
            unsafe { libc::lseek64(fd, offset + length as off64_t, libc::SEEK_SET) };
        }
        let mut at = 0;
        for piece in vector {
            let part = piece.iov_len.min(length as usize - at);
            // SAFETY: the kernel has just filled these bytes on the caller's behalf.
            unsafe { Entries::new(piece.iov_base, part, offset + at as off64_t) }.answer(fd, known);
            at += part;
        }
        Ok(length)
    });
    // Where a fork lost the lock nothing can be answered.
    Some(done.unwrap_or(Err(libc::EIO)).unwrap_or_else(|error| {
        set_errno(error);
        -1
    }))
}

unsafe fn read_one(fd: c_int, from: From, buffer: *mut c_void, count: size_t) -> Option<ssize_t> {
    // SAFETY: the caller's arguments.
    unsafe {
        let vector = [iovec { iov_base: buffer, iov_len: count }];
        read_pagemap(fd, from, &vector, |from| match from {
            From::Position => real::read(fd, buffer, count),
            From::Offset(offset) => real::pread64(fd, buffer, count, offset),
        })
    }
}

unsafe fn read_many(fd: c_int, from: From, vector: *const iovec, count: c_int) -> Option<ssize_t> {
    // SAFETY: the caller's arguments. The kernel accepts no more than UIO_MAXIOV pieces, and checks them; an
    // unreadable vector is left to it.
    unsafe {
        let pieces =
            usize::try_from(count).ok().filter(|count| (1..=1024).contains(count) && !vector.is_null())?;
        let pieces = std::slice::from_raw_parts(vector, pieces);
        read_pagemap(fd, from, pieces, |from| match from {
            From::Position => real::readv(fd, vector, count),
            From::Offset(offset) => real::preadv64(fd, vector, count, offset),
        })
    }
}

/// Answer by `$answer` if `$fd` may be ours and is; otherwise by `$original`.
macro_rules! answer_or {
    ($fd:ident, $answer:expr, $original:expr) => {
        // SAFETY: the caller's arguments.
        unsafe {
            if files::is_candidate($fd) {
                if let Some(result) = $answer {
                    return result;
                }
            }
            $original
        }
    };
}

/// See `read` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    answer_or!(fd, read_one(fd, From::Position, buffer, count), real::read(fd, buffer, count))
}

/// See `__read_chk` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    room: size_t,
) -> ssize_t {
    if count > room {
        // SAFETY: the caller's arguments; this aborts.
        return unsafe { real::__read_chk(fd, buffer, count, room) };
    }
    answer_or!(fd, read_one(fd, From::Position, buffer, count), real::__read_chk(fd, buffer, count, room))
}

macro_rules! preads {
    ($($name:ident, $checked:ident;)*) => {$(
        #[doc = concat!("See `", stringify!($name), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buffer: *mut c_void,
            count: size_t,
            offset: off64_t,
        ) -> ssize_t {
            answer_or!(
                fd,
                read_one(fd, From::Offset(offset), buffer, count),
                real::pread64(fd, buffer, count, offset)
            )
        }

        #[doc = concat!("See `", stringify!($checked), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $checked(
            fd: c_int,
            buffer: *mut c_void,
            count: size_t,
            offset: off64_t,
            room: size_t,
        ) -> ssize_t {
            if count > room {
                // SAFETY: the caller's arguments; this aborts.
                return unsafe { real::__pread64_chk(fd, buffer, count, offset, room) };
            }
            answer_or!(
                fd,
                read_one(fd, From::Offset(offset), buffer, count),
                real::__pread64_chk(fd, buffer, count, offset, room)
            )
        }
    )*};
}

// An off_t has 64 bits wherever this library is built for.
preads! {
    pread, __pread_chk;
    pread64, __pread64_chk;
}

/// See `readv` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    answer_or!(fd, read_many(fd, From::Position, vector, count), real::readv(fd, vector, count))
}

macro_rules! preadvs {
    ($($name:ident, $flagged:ident;)*) => {$(
        #[doc = concat!("See `", stringify!($name), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            vector: *const iovec,
            count: c_int,
            offset: off64_t,
        ) -> ssize_t {
            answer_or!(
                fd,
                read_many(fd, From::Offset(offset), vector, count),
                real::preadv64(fd, vector, count, offset)
            )
        }

        #[doc = concat!("See `", stringify!($flagged), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $flagged(
            fd: c_int,
            vector: *const iovec,
            count: c_int,
            offset: off64_t,
            flags: c_int,
        ) -> ssize_t {
            // The kernel takes no flags for files in /proc, and knows what to say then.
            let from = if offset == -1 { From::Position } else { From::Offset(offset) };
            answer_or!(
                fd,
                if flags == 0 { read_many(fd, from, vector, count) } else { None },
                real::preadv64v2(fd, vector, count, offset, flags)
            )
        }
    )*};
}

preadvs! {
    preadv, preadv2;
    preadv64, preadv64v2;
}

/// Write to a `clear_refs`. `None` if `fd` is none of ours, or for what the kernel answers.
unsafe fn write_clear_refs(fd: c_int, buffer: *const c_void, count: size_t) -> Option<ssize_t> {
    if lock::is_held_here() {
        return None;
    }
    let known = files::known(fd).filter(|known| known.kind == Kind::ClearRefs)?;
    lock::cancellation_point();
    // SAFETY: a plain query.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    if !matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR) {
        return None;
    }
    let mut command = [0u8; answer::COMMAND_LENGTH];
    let length = count.min(command.len());
    let is_known = kernel::copy_in(buffer as usize, &mut command[..length]).is_some();
    if !is_known || !answer::is_clear_soft_dirty(&command[..length]) {
        return None;
    }
    let done = lock::hold(|| answer::clear_soft_dirty(known)).unwrap_or(Err(libc::EIO));
    Some(match done {
        Ok(()) => length as ssize_t,
        Err(error) => {
            set_errno(error);
            -1
        }
    })
}

/// See `write` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    answer_or!(fd, write_clear_refs(fd, buffer, count), real::write(fd, buffer, count))
}

macro_rules! pwrites {
    ($($name:ident)*) => {$(
        #[doc = concat!("See `", stringify!($name), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buffer: *const c_void,
            count: size_t,
            offset: off64_t,
        ) -> ssize_t {
            answer_or!(
                fd,
                if offset >= 0 { write_clear_refs(fd, buffer, count) } else { None },
                real::pwrite64(fd, buffer, count, offset)
            )
        }
    )*};
}

pwrites! { pwrite pwrite64 }
