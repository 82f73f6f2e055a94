// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The documented loop on a running program that somebody else wrote: copy everything, then collect and copy while it
//! goes on; from time to time stop it, collect, copy, and compare the image with the memory.
//!
//! The program is stopped by SIGSTOP, which its parent can see, and goes on after a comparison that failed too, and
//! before a signal ends this process ([`Held`]); only a SIGKILL in the midst of one leaves it stopped. What
//! it shares with other processes is compared only if the back end promises to report their writes.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

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
    let signals = Held::new().map_err(io::Error::from)?;
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
            signals.deliver().map_err(io::Error::from)?;
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
    those: SigSet,
    before: SigSet,
}

impl Held {
    fn new() -> nix::Result<Self> {
        let those = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
        let before = SigSet::thread_get_mask()?;
        SigSet::thread_block(&those)?;
        Ok(Held { those, before })
    }

    /// Let in what came meanwhile.
    fn deliver(&self) -> nix::Result<()> {
        self.before.thread_set_mask()?;
        self.those.thread_block()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask(); // of a set that was this thread's
    }
}
