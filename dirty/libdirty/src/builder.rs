// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making a tracker: by the back end that is asked for, or by the cheapest that the survey finds to work.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{self, Backend};
use crate::capability::BackendKind;
use crate::error::{Error, Result};
use crate::survey::{self, Rejected};
use crate::target::Target;
use crate::tracker::Tracker;

/// So often a process may replace its memory while a tracker is made.
const MOST_EXECS: usize = 10;

/// How to make a [`Tracker`].
#[derive(Debug, Clone, Default)]
pub struct Builder {
    backend: Option<BackendKind>,
    userfaultfd: Option<Arc<OwnedFd>>,
    patience: Option<Duration>,
}

impl Builder {
    /// Use this back end or none. Without it the cheapest that works is taken (`auto`).
    #[must_use]
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.backend = Some(kind);
        self
    }

    /// Use this userfaultfd, which the process to be tracked has made itself and from which the caller has it: by
    /// SCM_RIGHTS, `pidfd_getfd(2)` or a parasite. For a process that may not be made to call `userfaultfd(2)`: under
    /// seccomp, or held by a debugger. Nothing is injected then, and ptrace is not used.
    ///
    /// It is used by [`BackendKind::UffdAsync`], the default here, which needs no flag but may have any; best is one
    /// that is not initialised (`UFFDIO_API`), which it then is, even where it is refused. The tracker keeps it until
    /// it is dropped.
    ///
    /// It is refused if it is no userfaultfd or one for the memory of another process. To find that out, a page of the
    /// process is registered with it for a moment: in another process, if it is another's.
    #[must_use]
    pub fn userfaultfd(mut self, userfaultfd: OwnedFd) -> Self {
        self.userfaultfd = Some(Arc::new(userfaultfd));
        self
    }

    /// Wait so long, and not 5 s, for a process all of whose threads sleep where no signal wakes them: for a disk, for a
    /// `vfork` child, or because somebody has frozen their cgroup. [`Builder::process`] is refused after that.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Track the calling process.
    ///
    /// # Errors
    /// [`Error::Rejected`] or [`Error::NoBackend`], with the reasons.
    pub fn own(self) -> Result<Tracker> {
        let target = Target::own()?;
        let (backend, rejected) = self.choose(&target)?;
        Ok(Tracker::new(target, backend, rejected))
    }

    /// Track process `pid`. The caller needs the permission to ptrace it (`ptrace(2)`, access mode checking). One that
    /// calls `execve` meanwhile is tracked in what it executes then, unless a userfaultfd was given.
    ///
    /// # Errors
    /// [`Error::NoProcess`], [`Error::Thread`], [`Error::NoMemory`], [`Error::Permission`], [`Error::Rejected`] or
    /// [`Error::NoBackend`]; [`Error::Gone`] if it calls `execve` again and again.
    pub fn process(self, pid: i32) -> Result<Tracker> {
        for _ in 0..MOST_EXECS {
            let mut target = Target::process(pid)?;
            if let Some(patience) = self.patience {
                target = target.with_patience(patience);
            }
            match self.choose(&target) {
                Ok((backend, rejected)) => return Ok(Tracker::new(target, backend, rejected)),
                // Why each back end failed says nothing then.
                Err(_) if target.is_gone() && self.userfaultfd.is_none() => {}
                Err(_) if target.is_gone() => break,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Gone(pid))
    }

    /// A back end for the target, and why each cheaper one does not work.
    fn choose(&self, target: &Target) -> Result<(Box<dyn Backend>, Rejected)> {
        Ok(match (self.backend, &self.userfaultfd) {
            (kind, Some(userfaultfd)) => {
                let kind = kind.unwrap_or(BackendKind::UffdAsync);
                let copy = userfaultfd.try_clone().map_err(|error| error.to_string());
                let backend = copy.and_then(|copy| backend::open_with(kind, target, copy));
                (backend.map_err(|why| Error::Rejected { backend: kind, why })?, Vec::new())
            }
            (Some(kind), None) => {
                let backend = backend::open(kind, target);
                (backend.map_err(|why| Error::Rejected { backend: kind, why })?, Vec::new())
            }
            (None, None) => survey::best(target)?,
        })
    }
}

impl Tracker {
    /// Choose how, then [`Builder::own`] or [`Builder::process`].
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
}
