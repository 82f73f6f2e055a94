// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making a tracker: by the back end that is asked for, or by the cheapest that the survey finds to work.

use crate::backend;
use crate::capability::BackendKind;
use crate::error::{Error, Result};
use crate::survey;
use crate::target::Target;
use crate::tracker::Tracker;

/// How to make a [`Tracker`].
#[derive(Debug, Clone, Default)]
pub struct Builder {
    backend: Option<BackendKind>,
}

impl Builder {
    /// Use this back end or none. Without it the cheapest that works is taken (`auto`).
    #[must_use]
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.backend = Some(kind);
        self
    }

    /// Track the calling process.
    ///
    /// # Errors
    /// [`Error::Rejected`] or [`Error::NoBackend`], with the reasons.
    pub fn own(self) -> Result<Tracker> {
        self.build(Target::own()?)
    }

    /// Track process `pid`. The caller needs the permission to ptrace it (`ptrace(2)`, access mode checking).
    ///
    /// # Errors
    /// [`Error::NoProcess`], [`Error::Permission`], [`Error::Rejected`] or [`Error::NoBackend`].
    pub fn process(self, pid: i32) -> Result<Tracker> {
        self.build(Target::process(pid)?)
    }

    fn build(self, target: Target) -> Result<Tracker> {
        let (backend, rejected) = match self.backend {
            Some(kind) => {
                let backend = backend::open(kind, &target);
                (backend.map_err(|why| Error::Rejected { backend: kind, why })?, Vec::new())
            }
            None => survey::best(&target)?,
        };
        Ok(Tracker::new(target, backend, rejected))
    }
}

impl Tracker {
    /// Choose how, then [`Builder::own`] or [`Builder::process`].
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
}
