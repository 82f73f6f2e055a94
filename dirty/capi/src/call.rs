// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The border: every exported function that can fail runs its body in [`call`], so that nothing unwinds into C.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::{Failure, Outcome};
use crate::memory;

/// Run the body of a call; what it returns, or its negative errno.
pub(crate) fn call<T: From<c_int>>(body: impl FnOnce() -> Outcome<T>) -> T {
    attempt(body).unwrap_or_else(|failure| T::from(failure.keep()))
}

/// As [`call`], with signals blocked: no signal can stop this thread while it holds a lock of the library.
pub(crate) fn call_unstopped<T: From<c_int>>(body: impl FnOnce() -> Outcome<T>) -> T {
    let _unsignalled = Unsignalled::new();
    call(body)
}

/// Run the body of a call that returns text; NULL when it fails.
pub(crate) fn call_text<T>(body: impl FnOnce() -> Outcome<*const T>) -> *const T {
    attempt(body).unwrap_or_else(|failure| {
        failure.keep();
        std::ptr::null()
    })
}

fn attempt<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _uncancelled = Uncancelled::new();
    memory::guard_forks();
    // Whatever a panic leaves half done is behind the mutex of its tracker, which refuses from then on.
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(Failure::new(libc::EIO, message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let why = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
    format!("a bug in libdirty, please report it: {}", why.unwrap_or("panic without a message"))
}

/// While it lives the thread cannot be cancelled: `pthread_cancel` unwinds, which Rust's frames do not survive.
struct Uncancelled {
    before: c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

impl Uncancelled {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: a valid state, and a place for the old one.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: the state that this thread had before.
        unsafe { pthread_setcancelstate(self.before, &raw mut ignored) };
    }
}

/// While it lives the thread takes no signal but those of its own faults.
struct Unsignalled {
    before: libc::sigset_t,
}

impl Unsignalled {
    fn new() -> Self {
        const FAULTS: [c_int; 6] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        // SAFETY: signal sets are plain numbers; the calls fill one, and exchange it for the mask of this thread.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            for fault in FAULTS {
                libc::sigdelset(&raw mut all, fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Unsignalled { before }
        }
    }
}

impl Drop for Unsignalled {
    fn drop(&mut self) {
        // SAFETY: the mask that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::failure;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        for panicking in [|| panic!("static"), || panic!("made {}", 1)] {
            assert_eq!(call::<i64>(panicking), -i64::from(libc::EIO));
        }
        // SAFETY: a text that ends with a zero, of this thread.
        let error = unsafe { CStr::from_ptr(failure::last()) }.to_str().unwrap();
        assert_eq!(error, "a bug in libdirty, please report it: made 1");
        assert!(call_text::<i8>(|| panic!()).is_null());
    }
}
