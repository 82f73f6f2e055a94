// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong. Each message lets the reader know what to do about it.

use std::io;

use crate::capability::BackendKind;
use crate::extent::PageRange;

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. A call that fails has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range is empty, not page-aligned, or outside of user space.
    #[error("range {start:#x}..{end:#x}: {why}")]
    BadRange {
        /// First address asked for.
        start: usize,
        /// End asked for (exclusive).
        end: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The range, or a part of it, is watched already.
    #[error("range {0} overlaps {1}, which is watched already")]
    Overlap(PageRange, PageRange),
    /// The range to stop watching is not watched, or not wholly.
    #[error("range {0} is not watched as a whole")]
    NotWatched(PageRange),
    /// The caller may not track this process.
    #[error("process {pid}: permission denied ({what}); tracking needs the permission to ptrace it")]
    Permission {
        /// The process.
        pid: i32,
        /// What was refused.
        what: String,
    },
    /// There is no such process.
    #[error("process {0}: no such process")]
    NoProcess(i32),
    /// It is not a process's number but that of one of its threads, which have the memory together.
    #[error("process {pid}: this is a thread of process {process}; track that")]
    Thread {
        /// What was asked for.
        pid: i32,
        /// The process.
        process: i32,
    },
    /// It has no memory: a kernel thread, or a process that has ended.
    #[error("process {0} has no memory: it is a kernel thread, or has ended and is not waited for yet")]
    NoMemory(i32),
    /// The tracked process ended or called `execve`; this was reported by an earlier collect.
    #[error("process {0} has ended or replaced its memory (execve); nothing is tracked any more")]
    Gone(i32),
    /// The tracker belongs to the process that made it; this is a forked child.
    #[error("this tracker belongs to process {0}; a forked child makes its own")]
    Forked(u32),
    /// The back end does not work here.
    #[error("{backend}: {why}")]
    Rejected {
        /// Which back end.
        backend: BackendKind,
        /// What was tried, and what happened.
        why: String,
    },
    /// No back end works here; each with its reason.
    #[error("no back end works here: {}", reasons(.0))]
    NoBackend(Vec<(BackendKind, String)>),
    /// The kernel refused something that it should not have.
    #[error("{what}: {error}")]
    System {
        /// What was asked of it.
        what: String,
        /// What it said. It is in the message, and so no [`source`](std::error::Error::source) of it.
        error: io::Error,
    },
}

/// In words: first the back ends that need nothing to be installed, whose reasons decide.
fn reasons(rejected: &[(BackendKind, String)]) -> String {
    let mut rejected: Vec<_> = rejected.iter().collect();
    rejected.sort_by_key(|(kind, _)| kind.needs_module());
    rejected.iter().map(|(kind, why)| format!("{kind}: {why}")).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// A system call failed: `what` says which and on what.
    pub(crate) fn system(what: impl Into<String>, error: io::Error) -> Self {
        Error::System { what: what.into(), error }
    }

    /// The nearest `errno`, for the C interface.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Error::BadRange { .. } => libc::EINVAL,
            Error::Overlap(..) => libc::EEXIST,
            Error::NotWatched(_) => libc::ENOENT,
            Error::Permission { .. } => libc::EPERM,
            Error::NoProcess(_) | Error::Thread { .. } | Error::NoMemory(_) | Error::Gone(_) => libc::ESRCH,
            Error::Forked(_) => libc::EXDEV,
            Error::Rejected { .. } | Error::NoBackend(_) => libc::EOPNOTSUPP,
            Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
