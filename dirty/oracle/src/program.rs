// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The documented loop on a running program that somebody else wrote: copy everything, then collect and copy while it
//! goes on; from time to time stop it, collect, copy, and compare the image with the memory.
//!
//! The program is stopped by SIGSTOP, which its parent can see, and goes on after a comparison that failed too, and
//! before a signal ends this process ([`Held`]); only a SIGKILL in the midst of one leaves it stopped. What
//! it shares with other processes is compared only if the back end promises to report their writes.

use std::time::{Duration, Instant};

use libdirty::{PageRange, page_size};

use crate::judge::{Area, Judge};
use crate::outcome::{Outcome, Stop};
use crate::subject::Subject;

/// At least so many before each image, however little time there is.
const COLLECTS: usize = 3;

/// How long to look, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Looks {
    /// Images that are compared; at least 1.
    pub images: u32,
    /// Between two collects.
    pub interval: Duration,
    /// In all; each image gets its part.
    pub seconds: f64,
}

/// Keep an image of process `pid` and compare it. Ends at the first image that is wrong.
///
/// # Errors
/// A skip when the process cannot be tracked; a failure when it ends meanwhile.
pub fn judge(subject: Subject, pid: i32, looks: Looks) -> Result<Outcome, Stop> {
    let signals = Held::new();
    let mut judge = Judge::of_process(subject, pid)?;
    let everything = PageRange::everything();
    judge.watch(Area { start: everything.start(), pages: everything.pages() })?;
    let begun = Instant::now();
    let mut images = 0;
    for image in 1..=looks.images {
        let until = looks.seconds * f64::from(image) / f64::from(looks.images);
        let mut collects = 0;
        while collects < COLLECTS || begun.elapsed().as_secs_f64() < until {
            judge.collect_racing()?;
            judge.copy()?;
            std::thread::sleep(looks.interval);
            signals.deliver();
            collects += 1;
        }
        judge.stopped(Judge::check)?;
        images += 1;
        if !judge.outcome.is_good() {
            break;
        }
    }
    judge.outcome.notes.push(format!("{images} images, {} KiB pages", page_size() / 1024));
    Ok(std::mem::take(&mut judge.outcome))
}

/// What ends a process from outside, held back: all of its threads that are started later do so too.
struct Held {
    those: libc::sigset_t,
    before: libc::sigset_t,
}

impl Held {
    fn new() -> Self {
        // SAFETY: a set of signals is plain data.
        let (mut those, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: points to a set that lives here, and makes it a valid one.
        unsafe { libc::sigemptyset(&raw mut those) };
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            // SAFETY: a valid set, and a signal that exists.
            unsafe { libc::sigaddset(&raw mut those, signal) };
        }
        // SAFETY: both point to sets that live here.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const those, &raw mut before) };
        Held { those, before }
    }

    /// Let in what came meanwhile.
    fn deliver(&self) {
        // SAFETY: points to a set that lives here; nothing is asked for the old one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.those, std::ptr::null_mut()) };
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: points to a set that lives here; nothing is asked for the old one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
