// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The open trackers, by number.
//!
//! Invariants:
//! - A number is given out once in the life of a program, its forked children included: what it named is closed or
//!   open, never another. All are above 2^32, so that one cut to an `int` names nothing, nor does a descriptor.
//! - A lock is taken only by the process that made the table. A forked child, where a lock may be held by a thread
//!   that does not exist there, gets a table of its own and never touches its parent's.
//! - The lock of the table is never held while a tracker works, so calls on different trackers run side by side.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::failure::{Failure, Outcome};

const FIRST: i64 = (1 << 32) + 1;

static NEXT: AtomicI64 = AtomicI64::new(FIRST);

/// Of the process that opened a tracker last; tables of parents are never freed.
static TABLE: AtomicPtr<Table<crate::session::Session>> = AtomicPtr::new(std::ptr::null_mut());

/// The handles of one process.
#[derive(Debug)]
pub(crate) struct Table<T> {
    owner: u32,
    /// Lower numbers were given out by a parent.
    first: i64,
    /// `None` once closed, for those who waited for the lock meanwhile.
    open: RwLock<BTreeMap<i64, Slot<T>>>,
}

type Slot<T> = Arc<Mutex<Option<T>>>;

/// The table of this process, to add to.
pub(crate) fn own_table() -> &'static Table<crate::session::Session> {
    let mut there = TABLE.load(Ordering::Acquire);
    loop {
        // SAFETY: null or a table that is never freed.
        if let Some(table) = unsafe { there.as_ref() }.filter(|table| table.is_own()) {
            return table;
        }
        let new = Box::into_raw(Box::new(Table::new()));
        match TABLE.compare_exchange(there, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => there = new,
            Err(winner) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                there = winner;
            }
        }
    }
}

/// The table where `handle` is to be looked up.
pub(crate) fn table(handle: i64) -> Outcome<&'static Table<crate::session::Session>> {
    // SAFETY: null or a table that is never freed.
    match unsafe { TABLE.load(Ordering::Acquire).as_ref() } {
        Some(table) if table.is_own() => Ok(table),
        Some(table) if was_given_out(handle) => Err(foreign(handle, Some(table.owner))),
        _ => Err(unknown(handle)),
    }
}

impl<T> Table<T> {
    fn new() -> Self {
        Table {
            owner: std::process::id(),
            first: NEXT.load(Ordering::Relaxed),
            open: RwLock::new(BTreeMap::new()),
        }
    }

    fn is_own(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Give `value` a number.
    pub(crate) fn insert(&self, value: T) -> i64 {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Mutex::new(Some(value)));
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, slot);
        handle
    }

    /// Do something with what `handle` names; others who name it wait.
    pub(crate) fn with<R>(&self, handle: i64, work: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
        let slot = self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
        let slot = slot.ok_or_else(|| self.missing(handle))?;
        let mut value = slot.lock().map_err(|_| {
            let why =
                "an earlier call on this handle failed by a bug in libdirty; only dirty_close works now";
            Failure::new(libc::EIO, why)
        })?;
        work(value.as_mut().ok_or_else(|| unknown(handle))?)
    }

    /// End what `handle` names. When this returns no call works on it any more, and it is dropped.
    pub(crate) fn remove(&self, handle: i64) -> Outcome<()> {
        let slot = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        let slot = slot.ok_or_else(|| self.missing(handle))?;
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(value);
        Ok(())
    }

    fn missing(&self, handle: i64) -> Failure {
        if was_given_out(handle) && handle < self.first { foreign(handle, None) } else { unknown(handle) }
    }
}

fn was_given_out(handle: i64) -> bool {
    (FIRST..NEXT.load(Ordering::Relaxed)).contains(&handle)
}

fn unknown(handle: i64) -> Failure {
    let what = if was_given_out(handle) { "closed already" } else { "none that dirty_open returned" };
    Failure::new(libc::EBADF, format!("handle {handle}: {what}"))
}

fn foreign(handle: i64, owner: Option<u32>) -> Failure {
    let owner = owner.map_or_else(|| "a parent".to_owned(), |pid| format!("process {pid}"));
    let why = format!("handle {handle}: belongs to {owner}; a forked child opens its own");
    Failure::new(libc::EXDEV, why)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn errno<R: std::fmt::Debug>(outcome: Outcome<R>) -> i32 {
        -outcome.unwrap_err().keep()
    }

    #[test]
    fn a_closed_handle_stays_closed() {
        let table = Table::new();
        let first = table.insert(1);
        assert_eq!(table.with(first, |value| Ok(*value)).unwrap(), 1);
        table.remove(first).unwrap();
        let second = table.insert(2);
        assert_ne!(first, second);
        assert_eq!(errno(table.with(first, |_| Ok(()))), libc::EBADF);
        assert_eq!(errno(table.remove(first)), libc::EBADF);
        for handle in [0, -1, 3, i64::MIN, i64::MAX, second & 0xffff_ffff] {
            assert_eq!(errno(table.with(handle, |_| Ok(()))), libc::EBADF);
        }
    }

    #[test]
    fn after_a_panic_only_closing_works() {
        let table = Table::new();
        let handle = table.insert(1);
        let panicking = || table.with(handle, |_| -> Outcome<()> { panic!("a bug") });
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        assert_eq!(errno(table.with(handle, |_| Ok(()))), libc::EIO);
        table.remove(handle).unwrap();
        assert_eq!(errno(table.with(handle, |_| Ok(()))), libc::EBADF);
    }
}
