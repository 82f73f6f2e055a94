// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which back ends work here, found by *trying* each on scratch pages of the own process, not by version numbers.

use crate::backend::{self, Backend};
use crate::capability::BackendKind;
use crate::error::{Error, Result};
use crate::extent::{Dirty, page_size};
use crate::scratch::Scratch;
use crate::target::Target;
use crate::tracker::Tracker;

/// What trying a back end showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The back end.
    pub backend: BackendKind,
    /// Nothing, or why it is rejected.
    pub rejected: Option<String>,
}

/// Try every back end in the own process, cheapest first. (That of `mprotect` leaves its SIGSEGV handler behind, which
/// passes on what is not its own.)
#[must_use]
pub fn survey() -> Vec<Finding> {
    BackendKind::ALL
        .into_iter()
        .map(|backend| Finding { backend, rejected: try_on_scratch(backend).err() })
        .collect()
}

/// Back ends that do not work, each with its reason.
pub(crate) type Rejected = Vec<(BackendKind, String)>;

/// The cheapest back end that works for `target`, and why each cheaper one does not.
pub(crate) fn best(target: &Target) -> Result<(Box<dyn Backend>, Rejected)> {
    let mut rejected = Vec::new();
    for kind in BackendKind::ALL {
        // One that cannot track this process is not even tried.
        let opened = backend::check(kind, target)
            .and_then(|()| try_on_scratch(kind))
            .and_then(|()| backend::open(kind, target));
        match opened {
            Ok(backend) => return Ok((backend, rejected)),
            Err(why) => rejected.push((kind, why)),
        }
    }
    Err(Error::NoBackend(rejected))
}

const SCRATCH_PAGES: usize = 8;

/// Write known pages of scratch memory, and expect just these; twice, so that re-arming is tried as well.
fn try_on_scratch(kind: BackendKind) -> std::result::Result<(), String> {
    let scratch = Scratch::new(SCRATCH_PAGES).map_err(|error| format!("no scratch memory: {error}"))?;
    (0..SCRATCH_PAGES).for_each(|page| scratch.write(page));
    let own = Target::own().map_err(|error| error.to_string())?;
    let backend = backend::open(kind, &own)?;
    let mut tracker = Tracker::new(own, backend, Vec::new());
    tracker.watch(scratch.range()).map_err(|error| error.to_string())?;
    let mut dirty = Dirty::new();
    for written in [&[1, 4][..], &[], &[4, 5, 7], &[4]] {
        for page in written {
            scratch.write(*page);
        }
        tracker.collect(&mut dirty).map_err(|error| error.to_string())?;
        let found: Vec<usize> = dirty
            .extents()
            .iter()
            .flat_map(|extent| (extent.range.start()..extent.range.end()).step_by(page_size()))
            .map(|address| (address - scratch.range().start()) / page_size())
            .collect();
        if found != written {
            return Err(format!("on scratch memory, after writing pages {written:?} it reported {found:?}"));
        }
    }
    Ok(())
}
