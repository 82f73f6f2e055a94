// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which back ends work here, found by *trying* each on scratch pages of the own process, not by version numbers.

use crate::backend::{self, Backend};
use crate::capability::BackendKind;
use crate::error::{Error, Result};
use crate::extent::{Dirty, PageRange, page_size};
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

/// Try every back end in the own process, cheapest first.
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
        match try_on_scratch(kind).and_then(|()| backend::open(kind, target, None)) {
            Ok(backend) => return Ok((backend, rejected)),
            Err(why) => rejected.push((kind, why)),
        }
    }
    Err(Error::NoBackend(rejected))
}

const SCRATCH_PAGES: usize = 8;

/// Write known pages of scratch memory, and expect just these; twice, so that re-arming is tried as well.
fn try_on_scratch(kind: BackendKind) -> std::result::Result<(), String> {
    let scratch = Scratch::new()?;
    let mut tracker = Tracker::builder().backend(kind).own().map_err(|error| match error {
        Error::Rejected { why, .. } => why,
        error => error.to_string(),
    })?;
    tracker.watch(scratch.0).map_err(|error| error.to_string())?;
    let mut dirty = Dirty::new();
    for written in [&[1, 4][..], &[], &[4, 5, 7], &[4]] {
        for page in written {
            scratch.write(*page);
        }
        tracker.collect(&mut dirty).map_err(|error| error.to_string())?;
        let told: Vec<usize> = dirty
            .extents()
            .iter()
            .flat_map(|extent| (extent.range.start()..extent.range.end()).step_by(page_size()))
            .map(|address| (address - scratch.0.start()) / page_size())
            .collect();
        if told != written {
            return Err(format!("on scratch memory, after writing pages {written:?} it reported {told:?}"));
        }
    }
    Ok(())
}

/// A few pages of private memory, written once each.
struct Scratch(PageRange);

impl Scratch {
    fn new() -> std::result::Result<Self, String> {
        let length = SCRATCH_PAGES * page_size();
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(format!("no scratch memory: {}", std::io::Error::last_os_error()));
        }
        let scratch = Scratch(PageRange::trusted(memory as usize, memory as usize + length));
        for page in 0..SCRATCH_PAGES {
            scratch.write(page);
        }
        Ok(scratch)
    }

    fn write(&self, page: usize) {
        let byte = (self.0.start() + page * page_size()) as *mut u8;
        // SAFETY: within the mapping, which lives as long as `self`; volatile, for nobody reads it.
        unsafe { byte.write_volatile(byte.read_volatile().wrapping_add(1)) };
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; no reference to it exists.
        unsafe { libc::munmap(self.0.start() as *mut _, self.0.len()) };
    }
}
