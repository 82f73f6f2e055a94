// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of libdirty's own in this process, which no tracker of this process watches; and what else the trackers of
//! one process share.
//!
//! A tracker that watched its own records would find them written by every collect, make records of *those* pages,
//! and so on without end; and a thread or handler that serves faults would wait for itself. So bitmaps and the stacks
//! of such threads are entered here, and every list of mappings leaves them out.
//!
//! A range is entered after its memory was mapped, and removed before the memory is unmapped, so no other memory can
//! have these addresses meanwhile. (Between mapping and entry a tracker may see it as new memory, and report it as
//! unmapped by the next collect.)
//!
//! After a fork the lock may be held by a thread that the child does not have. The child begins with an empty
//! list of its own: the trackers it inherited do not work there, and their records are memory like any other.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::claim::Lock;
use crate::extent::PageRange;
use crate::private::Pool;

struct Registry {
    process: u32,
    ranges: Mutex<Vec<PageRange>>,
    claims: Mutex<Vec<Weak<Lock>>>,
    attaching: Mutex<()>,
    pool: Mutex<Pool>,
}

impl Registry {
    fn new(process: u32) -> Self {
        Registry {
            process,
            ranges: Mutex::default(),
            claims: Mutex::default(),
            attaching: Mutex::default(),
            pool: Mutex::default(),
        }
    }
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(std::ptr::null_mut());

/// The registry of this process. It is never freed: it is not knowable when the last reader is done.
fn registry() -> &'static Registry {
    let process = std::process::id();
    loop {
        let now = REGISTRY.load(Ordering::Acquire);
        // SAFETY: null, or a registry that was leaked and is never freed.
        if let Some(registry) = unsafe { now.as_ref() }
            && registry.process == process
        {
            return registry;
        }
        let fresh = Box::into_raw(Box::new(Registry::new(process)));
        if REGISTRY.compare_exchange(now, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above and seen by nobody else.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Memory of libdirty's own, entered for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Kept(PageRange);

impl Kept {
    pub(crate) fn new(range: PageRange) -> Self {
        let mut ranges = registry().ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let at = ranges.partition_point(|other| *other < range);
        ranges.insert(at, range);
        Kept(range)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut ranges = registry().ranges.lock().unwrap_or_else(PoisonError::into_inner);
        // In a forked child it was never entered.
        if let Ok(at) = ranges.binary_search(&self.0) {
            ranges.remove(at);
        }
    }
}

/// The processes that trackers of this program have claimed (see `claim`).
pub(crate) fn claims() -> MutexGuard<'static, Vec<Weak<Lock>>> {
    registry().claims.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to attach to processes: one thread's at a time.
pub(crate) fn attaching() -> MutexGuard<'static, ()> {
    registry().attaching.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The small pieces of memory of libdirty's own (see `private`).
pub(crate) fn pool() -> MutexGuard<'static, Pool> {
    registry().pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What libdirty keeps for itself within `range` now, sorted.
pub(crate) fn kept(range: PageRange) -> Vec<PageRange> {
    let ranges = registry().ranges.lock().unwrap_or_else(PoisonError::into_inner);
    let first = ranges.partition_point(|kept| kept.end() <= range.start());
    let end = ranges.partition_point(|kept| kept.start() < range.end());
    ranges[first..end.max(first)].to_vec()
}
