// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One process that is tracked, and what was found of it so far.

use std::io;
use std::time::Duration;

use libdirty::{BackendKind, Dirty, Error, PageRange, Reason, Tracker};

use crate::process;
use crate::protocol::{Extent, Mark, Process};
use crate::rounds::Rounds;

/// How long a process is waited for of which no thread can be woken. Others wait meanwhile for their answers: a checkpointer
/// that has frozen a cgroup asks about each process in it, and criu gives a dump up after 10 s.
const PATIENCE: Duration = Duration::from_millis(20);

/// A tracker of all memory of a process, and for each page when it was last reported.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) process: Process,
    /// Its children are to be tracked as well.
    pub(crate) tree: bool,
    tracker: Tracker,
    dirty: Dirty,
    rounds: Rounds,
    now: Mark,
    /// The round in which a client last began anew.
    cleared: Option<u64>,
}

/// Why a process that was tracked is not any more.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) &'static str);

/// The outcome of looking.
pub(crate) enum Looked {
    /// All writes until now are known, where it was looked.
    Known,
    /// Nothing could be found out, and nothing was lost.
    Failed(Error),
}

impl Held {
    /// Track the process that has this pid now.
    pub(crate) fn new(pid: i32, tree: bool, backend: Option<BackendKind>) -> Result<Self, Error> {
        let start = process::start(pid);
        let mut builder = Tracker::builder().patience(PATIENCE);
        if let Some(kind) = backend {
            builder = builder.backend(kind);
        }
        let mut tracker = builder.process(pid)?;
        tracker.watch(PageRange::everything())?;
        // The tracker has a process that lives; if that still started then, it is the one.
        let Some(start) = start.filter(|_| process::start(pid) == start) else {
            return Err(Error::NoProcess(pid));
        };
        Ok(Held {
            process: Process { pid, start },
            tree,
            tracker,
            dirty: Dirty::new(),
            rounds: Rounds::default(),
            now: Mark { epoch: random()?, round: 0 },
            cleared: None,
        })
    }

    pub(crate) fn mark(&self) -> Mark {
        self.now
    }

    pub(crate) fn backend(&self) -> BackendKind {
        self.tracker.backend()
    }

    /// Whether the pid is still this process's.
    pub(crate) fn is_there(&self) -> bool {
        process::start(self.process.pid) == Some(self.process.start)
    }

    /// Find what was written since the last time, within `range` or everywhere.
    pub(crate) fn look(&mut self, range: Option<PageRange>) -> Result<Looked, Ended> {
        if !self.is_there() {
            return Err(Ended("the process has ended"));
        }
        let looked = match range.map(|range| range.intersection(PageRange::everything())) {
            Some(Some(range)) => self.tracker.collect_range(range, &mut self.dirty),
            Some(None) => return Ok(Looked::Known), // page 0 is not watched
            None => self.tracker.collect(&mut self.dirty),
        };
        match looked {
            Ok(()) => {}
            Err(Error::Gone(_)) => return Err(Ended("the process has ended or called execve")),
            Err(error) => return Ok(Looked::Failed(error)),
        }
        self.now.round += 1;
        let mut found = Vec::with_capacity(self.dirty.extents().len());
        for extent in self.dirty.extents() {
            match extent.reason {
                Reason::Exec => return Err(Ended("the process has called execve")),
                Reason::Exited => return Err(Ended("the process has ended")),
                reason => found.push((extent.range, reason)),
            }
        }
        self.rounds.put_all(&found, self.now.round);
        Ok(Looked::Known)
    }

    /// From now on is what [`Held::last_cleared`] answers. Call after a look everywhere.
    pub(crate) fn clear(&mut self) {
        self.cleared = Some(self.now.round);
    }

    /// As [`Held::clear`], at an earlier moment of this tracking. Whether it is one.
    pub(crate) fn clear_from(&mut self, mark: Mark) -> bool {
        let is_ours = self.has_been(mark);
        if is_ours {
            self.cleared = Some(mark.round);
        }
        is_ours
    }

    fn has_been(&self, mark: Mark) -> bool {
        mark.epoch == self.now.epoch && mark.round <= self.now.round
    }

    /// A clear does not hold any more: whoever asks from it is told that everything was written.
    pub(crate) fn undo_clear(&mut self) {
        self.cleared = None;
    }

    pub(crate) fn last_cleared(&self) -> Option<Mark> {
        self.cleared.map(|round| Mark { round, ..self.now })
    }

    /// What was found after `mark`, if that is a moment of this tracking.
    pub(crate) fn since(
        &self,
        mark: Mark,
        range: PageRange,
        most: usize,
    ) -> Option<(Vec<Extent>, Option<usize>)> {
        self.has_been(mark).then(|| self.rounds.since(mark.round, range, most))
    }
}

/// A number that no other tracking has, of this holder or of another.
fn random() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    // SAFETY: room of the length given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(Error::System { what: "getrandom".into(), error: io::Error::last_os_error() });
    }
    // 0 stands for none.
    Ok(u64::from_ne_bytes(bytes).max(1))
}
