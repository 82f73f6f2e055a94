// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks signals for a while.

/// While it lives the calling thread takes no signal, nor do the threads that it makes.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// What was blocked before.
    before: libc::sigset_t,
}

impl Blocked {
    pub(crate) fn new() -> Self {
        // SAFETY: signal sets are plain numbers; the calls fill one, and exchange it for the mask of this thread.
        unsafe {
            let (mut all, mut before) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Blocked { before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
