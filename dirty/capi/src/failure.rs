// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a call failed: the number that it returns, and the message that each thread keeps of its last failure.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};

/// What a failed call returns and says.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

/// Result of the body of a call.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Self {
        Failure { errno, message: message.into() }
    }

    /// Keep the message for the thread; returns the negative errno.
    pub(crate) fn keep(self) -> c_int {
        keep(&self.message);
        // A failure without a number must not look like success.
        if self.errno > 0 { -self.errno } else { -libc::EIO }
    }
}

impl From<libdirty::Error> for Failure {
    fn from(error: libdirty::Error) -> Self {
        Failure::new(error.errno(), error.to_string())
    }
}

const MESSAGE_SIZE: usize = 1024;

thread_local! {
    // Without a destructor, so that it can be used at any time in the life of a thread. Always ends with a zero.
    static MESSAGE: UnsafeCell<[u8; MESSAGE_SIZE]> = const { UnsafeCell::new([0; MESSAGE_SIZE]) };
}

fn keep(message: &str) {
    let mut length = message.find('\0').unwrap_or(message.len()).min(MESSAGE_SIZE - 1);
    while !message.is_char_boundary(length) {
        length -= 1;
    }
    MESSAGE.with(|kept| {
        // SAFETY: only this thread reaches it, and no reference to it outlives this function or `last`; the caller
        // knows from the header that the text changes with a later failure.
        let kept = unsafe { &mut *kept.get() };
        kept[..length].copy_from_slice(&message.as_bytes()[..length]);
        kept[length..].fill(0);
    });
}

/// The message, as C wants it.
pub(crate) fn last() -> *const c_char {
    MESSAGE.with(|kept| kept.get().cast())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: a text that ends with a zero, of this thread.
        unsafe { CStr::from_ptr(last()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn keeps_the_last_message_of_each_thread() {
        assert_eq!(text(), "");
        assert_eq!(Failure::new(libc::EBADF, "first").keep(), -libc::EBADF);
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
        assert_eq!(text(), "first");
        Failure::new(libc::EBADF, "2\0nd").keep();
        assert_eq!(text(), "2");
    }

    #[test]
    fn cuts_long_messages_between_characters() {
        Failure::new(libc::EBADF, "ä".repeat(MESSAGE_SIZE)).keep();
        assert_eq!(text(), "ä".repeat((MESSAGE_SIZE - 1) / 2));
    }

    #[test]
    fn no_failure_looks_like_success() {
        assert_eq!(Failure::new(0, "").keep(), -libc::EIO);
        assert_eq!(Failure::new(-5, "").keep(), -libc::EIO);
    }
}
