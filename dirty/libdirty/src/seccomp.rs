// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread whose system calls are filtered (seccomp), made to call what its filter may forbid.
//!
//! The kernel lets a tracer suspend the filters of a thread that it has stopped (`PTRACE_O_SUSPEND_SECCOMP`). They are
//! in force again when the tracer lets go of the thread, however that comes about. This is permitted to a tracer with
//! CAP_SYS_ADMIN (in the first user namespace) that is itself not under seccomp.
//!
//! Invariant: no filtered thread is made to call anything before its filters are suspended. A filter may kill the whole
//! process for a call, so the tracer must not be killed in between either: see `guardian`.

use std::io;

use nix::unistd::Pid;

use crate::status;
use crate::target::Target;

/// What a caller may do who cannot have filters suspended.
const OTHERWISE: &str = "otherwise hand over a userfaultfd that the process itself has made (Builder::userfaultfd, \
                         dirty_open_fd)";

/// Whether thread `tid` of `target` is under seccomp. Only of a stopped thread does the answer stay true. Doubt is
/// an error.
pub(crate) fn is_filtered(target: &Target, tid: Pid) -> Result<bool, String> {
    let status = status::read(format!("/proc/{}/task/{tid}/status", target.pid()))?;
    // A kernel without seccomp has no such line.
    Ok(status.seccomp.unwrap_or(0) != 0)
}

/// Suspend the filters of thread `tid`, which the caller has stopped, for as long as it holds it. `options` are those
/// that it has been given already.
///
/// # Errors
/// Why that is not permitted, and what to do instead.
pub(crate) fn suspend(tid: Pid, options: i32) -> Result<(), String> {
    const PTRACE_O_SUSPEND_SECCOMP: i32 = 1 << 21; // Linux 4.3
    let options = libc::c_long::from(options | PTRACE_O_SUSPEND_SECCOMP);
    // SAFETY: plain numbers.
    if unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, tid.as_raw(), 0, options) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let needs = match error.raw_os_error() {
        Some(libc::EPERM) => "needs CAP_SYS_ADMIN, and that the caller is not under seccomp itself",
        Some(libc::EINVAL) => "needs a kernel with CONFIG_CHECKPOINT_RESTORE",
        _ => "failed",
    };
    Err(format!(
        "it runs under seccomp, which could kill it for the call; suspending that (PTRACE_O_SUSPEND_SECCOMP) {needs} \
         ({error}); {OTHERWISE}"
    ))
}
