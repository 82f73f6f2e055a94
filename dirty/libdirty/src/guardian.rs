// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work that must come to its end even if this process is killed meanwhile: it is done by a process of its own, the
//! guardian, which shares the memory and the descriptors (`clone` with CLONE_VM and CLONE_FILES). The calling thread
//! waits (CLONE_VFORK).
//!
//! A SIGKILL of this process ends its threads, but not the guardian, which is in a process group of its own as well.
//! What ends both is what kills every process in a cgroup or a pid namespace, and the power switch.
//!
//! Invariants:
//! - The calling thread does not run while the guardian does, so its thread-local memory is the guardian's: `errno`,
//!   and what `malloc` keeps for a thread.
//! - The guardian ends. If this process is killed while another of its threads holds the lock of `malloc`, the
//!   guardian would wait for it for ever; an alarm ends it then, which is no worse than having none.
//! - The guardian is a process with another pid: its work calls nothing that asks for the own pid (`own`, `claim`).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::signals::Blocked;

/// Seconds after which the guardian is ended; longer than all that it waits for.
const MOST_SECONDS: u32 = 30;
/// Of its stack, which the kernel fills as it is used.
const STACK: usize = 1 << 20;

struct Shared<W, T> {
    work: Option<W>,
    result: Option<T>,
}

/// Do `work` in a guardian. Its panics end it.
///
/// # Errors
/// It could not be made, or was ended before its work was done.
pub(crate) fn run<T, W: FnOnce() -> T>(work: W) -> Result<T, String> {
    let stack = Stack::new().map_err(|error| format!("no stack for a guardian process: {error}"))?;
    let mut shared = Shared { work: Some(work), result: None };
    // The guardian begins with this mask: no handler of the program runs in it.
    let _blocked = Blocked::new();
    // No exit signal: the program's own waiting for children does not see it.
    let flags =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_UNTRACED;
    // SAFETY: a new process on a stack of its own, with a pointer to what lives until it has ended: this thread goes
    // on only then.
    let pid = unsafe { libc::clone(guardian::<T, W>, stack.top(), flags, (&raw mut shared).cast()) };
    if pid < 0 {
        return Err(format!("no guardian process: {}", io::Error::last_os_error()));
    }
    let mut status = 0;
    // SAFETY: a child of this thread; `status` is there to be written.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    shared.result.ok_or_else(|| "the guardian process was ended before its work was done".into())
}

extern "C" fn guardian<T, W: FnOnce() -> T>(shared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the handlers and the process group are its own (no CLONE_SIGHAND); plain numbers and a set that is
    // filled before it is read.
    unsafe {
        libc::setpgid(0, 0);
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        let mut alarm: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut alarm);
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, std::ptr::null_mut());
        libc::alarm(MOST_SECONDS);
    }
    // SAFETY: the caller waits, and nobody else has the pointer.
    let shared = unsafe { &mut *shared.cast::<Shared<W, T>>() };
    if let Some(work) = shared.work.take() {
        shared.result = catch_unwind(AssertUnwindSafe(work)).ok();
    }
    0
}

struct Stack(*mut libc::c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), STACK, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Stack(memory)) }
    }

    fn top(&self) -> *mut libc::c_void {
        // SAFETY: the end of the mapping, which is aligned to pages.
        unsafe { self.0.byte_add(STACK) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, on which nobody runs any more.
        unsafe { libc::munmap(self.0, STACK) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_work_is_seen_here_and_its_end_is_noticed() {
        let own = std::process::id();
        let mut seen = Vec::new();
        let pid = run(|| {
            seen.push(1);
            // SAFETY: takes nothing.
            unsafe { libc::getpid() }
        });
        assert!(pid.is_ok_and(|pid| pid.cast_unsigned() != own));
        assert_eq!(seen, [1]);
        // SAFETY: the guardian ends itself.
        assert!(run(|| unsafe { libc::raise(libc::SIGALRM) }).unwrap_err().contains("ended before"));
    }
}
