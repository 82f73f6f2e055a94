// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench's clock, and the processor that it runs on.
//!
//! Invariant: other programs do not decide a figure. While a clock lives, the thread that made it, and every thread that
//! is started meanwhile, runs on one processor, so that a handler in another thread takes over by a switch and never by
//! the wake-up of an idle processor: that is what a figure of `uffd-sync` by wall clock mostly was, from 5,000 ns a page
//! on a busy host to 99,000 on an idle virtual one. Time is the processor time of the whole process, which stands still
//! while others have the processor.
//!
//! `--free` is the other way: any processor, wall clock. It has the wake-ups, and the load of the host.

use std::time::Instant;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Measures durations.
#[derive(Debug)]
pub enum Clock {
    /// Processor time, on one processor; the processors to return to.
    Own(CpuSet),
    /// Wall clock, on any.
    Free,
}

impl Clock {
    /// Stay on the processor that runs this thread now.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn own() -> Result<Self> {
        let before = sched_getaffinity(None).context("sched_getaffinity")?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one).context("sched_setaffinity")?;
        Ok(Clock::Own(before))
    }

    /// What it measures, for the report.
    pub fn name(&self) -> &'static str {
        match self {
            Clock::Own(_) => "processor time, on one processor",
            Clock::Free => "wall clock, on any processor",
        }
    }

    /// The nanoseconds that `work` takes.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> (f64, T) {
        match self {
            Clock::Own(_) => {
                let start = spent();
                let value = work();
                (spent() - start, value)
            }
            Clock::Free => {
                let start = Instant::now();
                let value = work();
                (start.elapsed().as_nanos() as f64, value)
            }
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if let Clock::Own(before) = self {
            // The thread has run on these; if one has been taken away, the kernel uses the others.
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Nanoseconds of the whole process.
fn spent() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::alone;

    #[test]
    fn waiting_for_a_processor_is_not_time() {
        let _alone = alone();
        let sleep = || std::thread::sleep(Duration::from_millis(50));
        let own = Clock::own().unwrap();
        assert!(own.time(sleep).0 < 20e6, "a sleep is no work");
        let burn = || {
            let until = spent() + 5e6;
            while spent() < until {}
        };
        assert!(own.time(burn).0 >= 5e6);
        let elsewhere = || std::thread::spawn(burn).join().unwrap();
        assert!(own.time(elsewhere).0 >= 5e6, "another thread's time counts");
        assert!(Clock::Free.time(sleep).0 >= 50e6);
    }

    #[test]
    fn it_stays_on_one_processor_and_gives_the_others_back() {
        let _alone = alone();
        let before = sched_getaffinity(None).unwrap();
        let own = Clock::own().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        let started = std::thread::spawn(|| sched_getaffinity(None).unwrap().count()).join().unwrap();
        assert_eq!(started, 1, "threads inherit it");
        drop(own);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
