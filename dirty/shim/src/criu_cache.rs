// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file in which criu keeps what it has found out about the kernel: `criu.kdat` in /run or in XDG_RUNTIME_DIR, where
//! that is a tmpfs.
//!
//! Invariant: what a criu found with this library is never believed by one without it. That one would take the kernel's bit
//! 55, which is always 0, for "clean", and leave out of its images what was written. So the file is not there for a criu
//! with this library, neither to be read nor to be made; it looks at the kernel each time, before it stops anybody.

use std::ffi::c_int;

use crate::files;
use crate::kernel;
use crate::settings::settings;

/// The file, and what it is called while it is written: by criu 4, by criu 3.
const NAMES: [&str; 3] = ["criu.kdat", "criu.kdat.tmp", ".criu.kdat"];

/// Whether a file of this status may be it. Nearly none is.
pub(crate) fn may_be(status: &libc::stat) -> bool {
    status.st_mode & libc::S_IFMT == libc::S_IFREG
        && status.st_mode & 0o777 == 0o600
        && libc::major(status.st_dev) == 0
}

/// Whether `fd`, which was just opened, is the file. One that was just made is removed. Takes no memory.
pub(crate) fn is_refused(fd: c_int, status: &libc::stat) -> bool {
    if settings().hold.is_none() && !kernel::is_answered_here() {
        return false;
    }
    let mut room = [0; 256];
    let Some(path) = files::path_of(fd, &mut room) else { return false };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if !NAMES.iter().any(|known| name == known.as_bytes()) {
        return false;
    }
    if status.st_size == 0 {
        // SAFETY: a path that ends in NUL: the room is longer.
        unsafe { libc::unlink(path.as_ptr().cast()) };
    }
    true
}
