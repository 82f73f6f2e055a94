// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that is tracked and sampled at intervals, for `watch` and `record`.
//!
//! Invariant: however the session ends (a signal, an error, a closed pipe on our output), the tracker is dropped,
//! which leaves the target untracked. After a kill -9 the kernel does the same.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use libdirty::{BackendKind, Dirty, PageRange, Reason, Tracker};
use procfs::process::Process;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::names::Names;
use super::sample::{Gone, Sample};
use super::working_set::WorkingSet;
use crate::output::printable;
use crate::parse;
use crate::stop::{Stop, Woken};

/// Options that `watch` and `record` share.
#[derive(Debug, Args)]
#[group(skip)] // flattened into other arguments
pub struct Arguments {
    /// The process, which the caller must be permitted to ptrace
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Seconds between two samples
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse::seconds)]
    pub interval: Duration,
    /// Seconds over which the working set is counted
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse::seconds)]
    pub window: Duration,
    /// The back end [default: the cheapest that works]
    #[arg(long, value_name = "NAME", value_parser = parse::backend)]
    pub backend: Option<BackendKind>,
}

/// The reason for the end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is time for the next sample.
    Sample,
    /// A signal requested the end, or the time is over.
    Stop,
    /// The descriptor that was passed is ready.
    Ready,
}

/// A tracker and what it has reported so far.
#[derive(Debug)]
pub struct Session {
    pub pid: i32,
    /// The program's name.
    pub command: String,
    stop: Stop,
    tracker: Tracker,
    process: Process,
    pidfd: OwnedFd,
    interval: Duration,
    dirty: Dirty,
    working_set: WorkingSet,
    began: Instant,
    last: Instant,
    due: Instant,
    /// When it ends without a signal.
    end: Option<Instant>,
}

impl Session {
    /// Begin to track everything in the process.
    ///
    /// # Errors
    /// No such process, no permission, no back end that works; the target is then unchanged.
    pub fn begin(arguments: &Arguments) -> Result<Self> {
        // Signals first: from here on they cannot end us while the target is only partly prepared.
        let stop = Stop::new().context("cannot listen for signals")?;
        let mut builder = Tracker::builder();
        if let Some(kind) = arguments.backend {
            builder = builder.backend(kind);
        }
        let mut tracker = builder.process(arguments.pid)?;
        let pid = Pid::from_raw(arguments.pid).context("a pid is greater than 0")?;
        let gone = || libdirty::Error::NoProcess(arguments.pid);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
        let process = Process::new(arguments.pid).map_err(|_| gone())?;
        let command = printable(&process.stat().map_err(|_| gone())?.comm);
        tracker.watch(PageRange::everything())?;
        let now = Instant::now();
        Ok(Session {
            pid: arguments.pid,
            command,
            stop,
            tracker,
            process,
            pidfd,
            interval: arguments.interval,
            dirty: Dirty::new(),
            working_set: WorkingSet::new(arguments.window.as_secs_f64()),
            began: now,
            last: now,
            due: now + arguments.interval,
            end: None,
        })
    }

    /// End this long after the beginning, as after a signal.
    pub fn end_after(&mut self, most: Duration) {
        self.end = Some(self.began + most);
    }

    /// The back end in use.
    pub fn backend(&self) -> BackendKind {
        self.tracker.backend()
    }

    /// Wait for the next sample's time, the end of the process, a signal, or `other` being readable.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>) -> Result<Next> {
        let fds: Vec<_> = std::iter::once(self.pidfd.as_fd()).chain(other).collect();
        let until = self.end.map_or(self.due, |end| end.min(self.due));
        Ok(match self.stop.wait(until, &fds)? {
            Woken::Stop => Next::Stop,
            Woken::Time if self.end.is_some_and(|end| Instant::now() >= end) => Next::Stop,
            Woken::Ready(1) => Next::Ready,
            Woken::Time | Woken::Ready(_) => Next::Sample,
        })
    }

    /// The pages written since the last call.
    ///
    /// # Errors
    /// When the mappings of the process cannot be read.
    pub fn sample(&mut self) -> Result<Sample> {
        self.tracker.collect(&mut self.dirty)?;
        let now = Instant::now();
        let seconds = now.duration_since(self.last).as_secs_f64().max(1e-6);
        let t = now.duration_since(self.began).as_secs_f64();
        self.last = now;
        // If late by more than an interval, skip intervals instead of taking several samples at once.
        self.due += self.interval;
        if self.due < now {
            self.due = now + self.interval;
        }

        let mut sample = Sample {
            t,
            seconds,
            written: 0,
            assumed: 0,
            assumed_why: BTreeMap::new(),
            working_set: self.working_set.add(t, &self.dirty),
            mappings: Names::read(&self.process).share(&self.dirty),
            gone: None,
        };
        for extent in self.dirty.extents() {
            let pages = extent.range.pages() as u64;
            match extent.reason {
                Reason::Exited => sample.gone = Some(Gone::Exited),
                Reason::Exec => sample.gone = Some(Gone::Exec),
                Reason::Unmapped | Reason::Discarded => {}
                Reason::Written => sample.written += pages,
                reason => {
                    sample.assumed += pages;
                    *sample.assumed_why.entry(reason.text().to_owned()).or_default() += pages;
                }
            }
        }
        Ok(sample)
    }
}
