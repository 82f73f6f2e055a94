// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the process watches by `mprotect`, as its SIGSEGV handler sees it: one immutable table (`segments`) behind one
//! atomic pointer. The handler takes no lock and allocates nothing.
//!
//! A change copies the table, swaps the pointer, and waits until no handler reads the old table any more
//! (sleepable RCU): a reader counts itself in one of two counters, and the writer turns new readers to the other
//! counter and waits for the first to fall to zero, twice, for a reader may have chosen its counter before
//! the turn and counted itself after. A steady stream of faults cannot hold the writer up. After a change no
//! handler acts on what was removed, and the old table is freed.
//!
//! A forked child inherits the table, which its own faults go on using, but not the threads that may have been
//! reading: its counters and the lock start anew (`pthread_atfork`; a child that a bare `clone` made waits
//! a second for each change and keeps the old table).

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::segments::{Segment, Segments, Watches};
use crate::bitmap::Bitmap;
use crate::extent::{PageRange, Reason};

/// What one tracker knows about one part: shared with the handler.
#[derive(Debug)]
pub(super) struct Watch {
    /// The tracker.
    pub(super) owner: usize,
    /// A bit for each page whose protection was lifted since the last collect.
    pub(super) written: Arc<Bitmap>,
    /// Why everything must be reported: a [`Reason`], or 0.
    pub(super) doubt: AtomicU32,
}

impl Watch {
    /// Everything must be reported. If there are several reasons, one of them is kept.
    pub(super) fn raise_doubt(&self, reason: Reason) {
        self.doubt.fetch_max(reason as u32, SeqCst);
    }

    pub(super) fn has_doubt(&self) -> bool {
        self.doubt.load(SeqCst) != 0
    }

    /// Take the doubt and clear it.
    pub(super) fn take_doubt(&self) -> Option<Reason> {
        match self.doubt.swap(0, SeqCst) {
            0 => None,
            overflow if overflow == Reason::Overflow as u32 => Some(Reason::Overflow),
            _ => Some(Reason::ProtectionChanged),
        }
    }
}

/// The protection of watched memory that must not be written unseen.
pub(super) fn armed(protection: i32) -> i32 {
    if protection & libc::PROT_WRITE == 0 {
        return protection;
    }
    // Writable memory can be read on every architecture, whether or not it was asked for.
    protection & !libc::PROT_WRITE | libc::PROT_READ
}

/// Everything that the handler needs.
#[derive(Default, Clone)]
pub(super) struct Table {
    pub(super) segments: Segments,
    /// Handlers that were installed before ours, the newest first.
    pub(super) previous: Vec<Previous>,
}

/// A handler from before.
#[derive(Clone)]
pub(super) struct Previous {
    pub(super) action: libc::sigaction,
    /// It was to be called once (SA_RESETHAND), and has been.
    pub(super) is_spent: Arc<AtomicBool>,
}

impl Table {
    /// Enter `watch` for `range`, whose protection is given.
    pub(super) fn add(&mut self, range: PageRange, protection: i32, watch: &Arc<Watch>) {
        self.segments.change(range, |inside| {
            inside.iter_mut().for_each(|segment| segment.set_protection(protection, watch.owner));
            let holes = range.without(inside.iter().map(|segment| segment.range).collect::<Vec<_>>());
            let mut last: Option<(Watches, Watches)> = None;
            for segment in inside.iter_mut() {
                // Neighbours mostly have one list, and go on sharing it.
                segment.watches = match &last {
                    Some((before, after)) if Arc::ptr_eq(before, &segment.watches) => after.clone(),
                    _ => {
                        let more: Watches = segment.watches.iter().chain([watch]).cloned().collect();
                        last = Some((segment.watches.clone(), more.clone()));
                        more
                    }
                };
            }
            let alone: Watches = Arc::from([watch.clone()]);
            inside.extend(holes.into_iter().map(|range| Segment {
                range,
                protection,
                watches: alone.clone(),
            }));
        });
    }

    /// The program has changed the protection of watched memory in `range`, as `owner` found. Other trackers that
    /// watch it cannot know what was written meanwhile.
    pub(super) fn set_protection(&mut self, range: PageRange, protection: i32, owner: usize) {
        let set = |inside: &mut Vec<Segment>| {
            inside.iter_mut().for_each(|segment| segment.set_protection(protection, owner));
        };
        self.segments.change(range, set);
    }

    /// See [`suspect`].
    pub(super) fn suspect(&self, range: PageRange, owner: usize) {
        for (piece, segment) in self.segments.within(range) {
            for watch in segment.watches.iter().filter(|watch| watch.owner != owner) {
                watch.written.fill(piece, true);
            }
        }
    }

    /// Take the watches of `owner` out of `range`. Returns them, perhaps several times; pieces that are left elsewhere
    /// may have them still.
    pub(super) fn remove(&mut self, range: PageRange, owner: usize) -> Vec<Arc<Watch>> {
        let mut removed = Vec::new();
        self.segments.change(range, |inside| {
            let is_its = |watch: &Arc<Watch>| watch.owner == owner;
            for segment in inside.iter_mut().filter(|segment| segment.watches.iter().any(is_its)) {
                let (gone, rest): (Vec<_>, Vec<_>) = segment.watches.iter().cloned().partition(is_its);
                removed.extend(gone);
                segment.watches = rest.into();
            }
            inside.retain(|segment| !segment.watches.is_empty());
        });
        removed
    }
}

impl Segment {
    fn set_protection(&mut self, protection: i32, owner: usize) {
        if self.protection == protection {
            return;
        }
        self.protection = protection;
        for watch in self.watches.iter().filter(|watch| watch.owner != owner) {
            watch.raise_doubt(Reason::ProtectionChanged);
        }
    }
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());
static READERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static TURN: AtomicUsize = AtomicUsize::new(0);
/// Tables so far.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
/// Held while the table is changed. Not a `Mutex`: a forked child must be able to release it.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Read the table, in the handler. `look` must neither be left by a jump nor wait.
pub(super) fn read<T>(look: impl FnOnce(Option<&Table>) -> T) -> T {
    let counter = &READERS[TURN.load(SeqCst) & 1];
    counter.fetch_add(1, SeqCst);
    // SAFETY: null or a table that is freed only after this reader has left: the writer swaps the pointer
    // before it looks at the counters.
    let seen = look(unsafe { TABLE.load(SeqCst).as_ref() });
    counter.fetch_sub(1, SeqCst);
    seen
}

/// A number that changes with the table, before the memory that the change adds is armed.
pub(super) fn changes() -> usize {
    CHANGES.load(SeqCst)
}

/// Read the table, outside of the handler, where waiting is allowed.
fn inspect<T: Default>(look: impl FnOnce(&Table) -> T) -> T {
    let _changing = Changing::begin();
    // SAFETY: only the holder of the lock frees tables.
    unsafe { TABLE.load(SeqCst).as_ref() }.map(look).unwrap_or_default()
}

/// The pieces of `range` that are watched by `owner`, or by anyone, and the protection the program gave them.
pub(super) fn protections(range: PageRange, owner: Option<usize>) -> Vec<(PageRange, i32)> {
    inspect(|table| {
        let is_watched = |segment: &Segment| {
            owner.is_none_or(|owner| segment.watches.iter().any(|watch| watch.owner == owner))
        };
        let found = table.segments.within(range).filter(|(_, segment)| is_watched(segment));
        found.map(|(piece, segment)| (piece, segment.protection)).collect()
    })
}

/// As [`protections`], of what nobody but `owner` watches.
pub(super) fn sole_protections(range: PageRange, owner: usize) -> Vec<(PageRange, i32)> {
    inspect(|table| {
        let is_sole = |segment: &Segment| segment.watches.iter().all(|watch| watch.owner == owner);
        let found = table.segments.within(range).filter(|(_, segment)| is_sole(segment));
        found.map(|(piece, segment)| (piece, segment.protection)).collect()
    })
}

/// Mark `range` for the other trackers that watch it. `owner` found it writable and is about to arm it: for the others,
/// too, it may have been written unseen, and they will not find it writable any more.
pub(super) fn suspect(range: PageRange, owner: usize) {
    inspect(|table| table.suspect(range, owner));
}

/// Change the table, then do what relies on the new one. When it returns, no handler acts on the old one.
pub(super) fn change<C, T>(change: impl FnOnce(&mut Table) -> C, then: impl FnOnce(C) -> T) -> T {
    let _changing = Changing::begin();
    let old = TABLE.load(SeqCst);
    // SAFETY: only the holder of the lock frees tables.
    let mut table = unsafe { old.as_ref() }.cloned().unwrap_or_default();
    let changed = change(&mut table);
    TABLE.store(Box::into_raw(Box::new(table)), SeqCst);
    CHANGES.fetch_add(1, SeqCst);
    let result = then(changed);
    if wait_for_readers() && !old.is_null() {
        // SAFETY: made by `Box::into_raw` here, replaced, and no reader is left that could have seen it.
        drop(unsafe { Box::from_raw(old) });
    }
    result
}

/// Whether all readers left in time. One that does not belongs to a thread that is gone or stopped.
fn wait_for_readers() -> bool {
    let mut since = None;
    for _ in 0..2 {
        let turn = TURN.fetch_add(1, SeqCst) & 1;
        while READERS[turn].load(SeqCst) != 0 {
            if since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1) {
                return false;
            }
            std::thread::yield_now();
        }
    }
    true
}

struct Changing;

impl Changing {
    fn begin() -> Self {
        while CHANGING.swap(true, SeqCst) {
            std::thread::yield_now();
        }
        Changing
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(false, SeqCst);
    }
}

/// In a forked child, which has one thread: that is neither in the handler nor changing anything.
pub(super) extern "C" fn start_anew() {
    READERS.iter().for_each(|counter| counter.store(0, SeqCst));
    CHANGING.store(false, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::page_size;

    fn range(first: usize, end: usize) -> PageRange {
        PageRange::new(first * page_size(), end * page_size()).unwrap()
    }

    fn watch(owner: usize) -> Arc<Watch> {
        let written = Arc::new(Bitmap::new(range(1, 100)).unwrap());
        Arc::new(Watch { owner, written, doubt: AtomicU32::new(0) })
    }

    fn contents(table: &Table) -> Vec<(PageRange, i32, Vec<usize>)> {
        let owners = |segment: &Segment| segment.watches.iter().map(|watch| watch.owner).collect();
        table.segments.iter().map(|segment| (segment.range, segment.protection, owners(segment))).collect()
    }

    #[test]
    fn watches_may_overlap() {
        let (first, second) = (watch(1), watch(2));
        let mut table = Table::default();
        table.add(range(10, 20), 3, &first);
        table.add(range(15, 30), 3, &second);
        assert_eq!(
            contents(&table),
            [(range(10, 15), 3, vec![1]), (range(15, 20), 3, vec![1, 2]), (range(20, 30), 3, vec![2])]
        );
        assert_eq!(first.take_doubt(), None);
        table.set_protection(range(18, 22), 1, 2);
        assert_eq!(first.take_doubt(), Some(Reason::ProtectionChanged));
        assert_eq!((first.take_doubt(), second.take_doubt()), (None, None));
        let first = table.segments.find(10 * page_size()).unwrap();
        assert_eq!(table.segments.around(first), range(10, 18));
        assert_eq!(table.segments.find(18 * page_size()).unwrap().range, range(18, 20));
        table.remove(range(1, 100), 2);
        assert_eq!(
            contents(&table),
            [(range(10, 15), 3, vec![1]), (range(15, 18), 3, vec![1]), (range(18, 20), 1, vec![1])]
        );
        assert!(table.segments.find(20 * page_size()).is_none());
    }

    #[test]
    fn readers_see_a_whole_table_while_it_changes() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        read(|table| {
                            let Some(table) = table else { return };
                            let ranges: Vec<_> = table.segments.iter().map(|segment| segment.range).collect();
                            assert!(ranges.windows(2).all(|two| two[0].end() <= two[1].start()));
                            assert!(table.segments.iter().all(|segment| !segment.watches.is_empty()));
                        });
                    }
                });
            }
            let one = watch(usize::MAX);
            for round in 0..200 {
                change(|table| table.add(range(10 + round % 7, 40), 3, &one), |()| ());
                change(|table| table.remove(range(1, 100), usize::MAX), drop);
            }
            stop.store(true, SeqCst);
            assert_eq!(Arc::strong_count(&one), 1, "old tables are freed");
        });
    }
}
