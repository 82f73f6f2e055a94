// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock around everything that is more than a look at a table.
//!
//! Its holder takes no signal and no cancellation, so that a handler which reads the same files cannot meet its own
//! thread's lock, and a collector cannot stop a thread that holds it. `fork` waits for it. Where a child was made
//! by other means while somebody held it, the child finds another process's pid in the lock and refuses.

use std::mem::MaybeUninit;
use std::process;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The pid of the process one of whose threads holds the lock; 0 if none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How many threads sleep until it is 0.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// The thread that holds it.
static THREAD: AtomicI32 = AtomicI32::new(0);

/// What [`hold`] changed, to be undone.
struct Shield {
    signals: libc::sigset_t,
    cancellation: i32,
    errno: i32,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}
const PTHREAD_CANCEL_DISABLE: i32 = 1;

impl Shield {
    fn raise() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut signals = MaybeUninit::uninit();
        let mut cancellation = 0;
        // SAFETY: each call fills the set or the number that it is given; a valid `how` cannot fail.
        unsafe {
            let errno = *libc::__errno_location();
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancellation);
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), signals.as_mut_ptr());
            Shield { signals: signals.assume_init(), cancellation, errno }
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        // SAFETY: the values that `raise` found.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, std::ptr::null_mut());
            pthread_setcancelstate(self.cancellation, std::ptr::null_mut());
            *libc::__errno_location() = self.errno;
        }
    }
}

/// End the calling thread here if it was cancelled, as the C library's functions would, which the shim answers for. Its
/// callers have nothing to drop.
pub(crate) fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: takes nothing.
    unsafe { pthread_testcancel() };
}

/// The lock, held; released when dropped.
struct Held;

impl Held {
    /// `None` in a child that was forked, not by `fork`, from within the lock.
    fn take() -> Option<Self> {
        let own = process::id();
        loop {
            match OWNER.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(owner) if owner != own => return None,
                Err(_) => {
                    WAITING.fetch_add(1, Ordering::SeqCst);
                    futex(libc::FUTEX_WAIT, own);
                    WAITING.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
        THREAD.store(thread(), Ordering::Relaxed);
        Some(Held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        THREAD.store(0, Ordering::Relaxed);
        OWNER.store(0, Ordering::SeqCst);
        if WAITING.load(Ordering::SeqCst) > 0 {
            futex(libc::FUTEX_WAKE, 1);
            // Waiting threads go first; else a thread that locks in a loop would keep the lock to itself.
            // SAFETY: takes nothing.
            unsafe { libc::sched_yield() };
        }
    }
}

/// Sleep while `OWNER` is `value`, or wake `value` sleepers.
fn futex(what: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the address is valid for ever; a wait may end early, and its caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, OWNER.as_ptr(), what | libc::FUTEX_PRIVATE_FLAG, value, none) };
}

/// Run `body` under the lock; errno is afterwards what it was. `None` where the lock was lost in a fork.
pub(crate) fn hold<T>(body: impl FnOnce() -> T) -> Option<T> {
    let _shield = Shield::raise();
    let _held = Held::take()?;
    Some(body())
}

/// Whether the calling thread holds the lock: this is the shim's own call.
pub(crate) fn is_held_here() -> bool {
    OWNER.load(Ordering::Relaxed) != 0 && THREAD.load(Ordering::Relaxed) == thread()
}

fn thread() -> i32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::gettid() }
}

/// From now on `fork` waits until nobody holds the lock, and calls `in_child` in the child.
pub(crate) fn guard_forks(in_child: fn()) {
    static IN_CHILD: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();
    /// How to leave the lock on the two sides; written and read by the thread that forks, under the lock.
    static mut FORKING: Option<(Held, Shield)> = None;

    extern "C" fn before() {
        let shield = Shield::raise();
        if let Some(held) = Held::take() {
            // SAFETY: only the holder of the lock comes here.
            unsafe { FORKING = Some((held, shield)) };
        }
    }
    fn leave() {
        // SAFETY: set by `before` of this thread, which still holds the lock.
        #[allow(static_mut_refs)]
        drop(unsafe { FORKING.take() });
    }
    extern "C" fn in_parent() {
        leave();
    }
    extern "C" fn after_in_child() {
        // SAFETY: this thread is the only one now; it wrote the value, unless the lock was lost.
        #[allow(static_mut_refs)]
        if unsafe { FORKING.is_none() } {
            return;
        }
        // The lock says the parent's pid.
        OWNER.store(process::id(), Ordering::Relaxed);
        THREAD.store(thread(), Ordering::Relaxed);
        if let Some(in_child) = IN_CHILD.get() {
            in_child();
        }
        leave();
    }

    if IN_CHILD.set(in_child).is_ok() {
        // SAFETY: three functions that live as long as the process. Without memory for it a child finds the lock
        // as it was, and the tables of its parent, which it does not believe.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(after_in_child)) };
    }
}
