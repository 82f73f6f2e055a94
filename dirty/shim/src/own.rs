// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program's own process by the kernel module, where `LIBDIRTY_SOFTDIRTY` names one of its back ends. For garbage
//! collectors: they read bit 55 of their heap with the program stopped, collection after collection.
//!
//! A *pass* is what the program reads between two clears. Its first read collects, the others are answered from the same
//! collect; so is a read that begins where the first one did, which begins the pass anew. The kernel's pagemap is not
//! read at all: every page reads as present, and bit 55 is the only other one that is ever set.
//!
//! Invariants:
//! - **Never falsely clean**, as of the collect: a page reads clean only if the module has watched it since the last clear,
//!   and has not found it since. What is asked about for the first time is dirty.
//! - **Only what is mapped is watched.** The module tells what was unmapped, but not what `mremap` puts in a hole later; so
//!   each collect looks for holes, and memory with one is not watched any more.
//! - **Nothing is lost**: a clear forgets what collects have found, and nothing else. What was written after the collect of
//!   a pass stays with the module, and is told in the next pass.
//! - **In doubt dirty**: after a collect that failed, or a panic, all reads dirty, until a clear begins with a new tracker.

use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::iovec;
use libdirty::device::{Device, abi};
use libdirty::pagemap::Entry;
use libdirty::{BackendKind, PageRange, page_size};

use crate::lock;
use crate::settings::{announce, say, settings};

/// Ranges that one call of the module returns at most.
const ROOM: usize = 4096;

/// Whether this process is tracked by the module.
enum State {
    Untried,
    /// The module cannot be used here: it is as if it had not been asked for.
    Refused,
    Made(Box<Own>),
}

/// Locked only under the lock of [`crate::lock`].
static STATE: Mutex<State> = Mutex::new(State::Untried);

/// Whether `STATE` is no longer `Untried`, and is `Made`: known without a lock, which another thread may hold while it
/// waits for the caller.
static IS_TRIED: AtomicBool = AtomicBool::new(false);
static IS_MADE: AtomicBool = AtomicBool::new(false);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Own {
    backend: BackendKind,
    device: Device,
    /// What the module watches, sorted, apart from each other: all of it was mapped at each collect and since its watch.
    watched: Vec<PageRange>,
    /// What collects found since the last clear that forgot, sorted, apart from each other.
    found: Vec<PageRange>,
    /// What is watched since then only.
    fresh: Vec<PageRange>,
    /// Holes that were asked about.
    holes: Vec<Hole>,
    /// Counts clears.
    pass: u64,
    /// Room for what one call finds.
    room: Vec<abi::Range>,
    /// Where the first read of this pass began; `None` before it.
    begun: Option<usize>,
    /// Before the first clear, and in doubt, everything is dirty.
    is_cleared: bool,
    /// In doubt a clear takes a new tracker.
    is_in_doubt: bool,
}

/// Memory with nothing to be watched, which reads dirty. To look again costs as much as the rest of a read, so it is looked
/// at ever more seldom, as long as nothing around it changes.
struct Hole {
    range: PageRange,
    /// The pass in which it is to be looked at again, and how many passes it was left alone.
    due: u64,
    wait: u64,
}

/// The most passes for which a hole is left alone.
const LONGEST_WAIT: u64 = 16;

/// Whether the module answers for this process: for the own alone. Where it cannot, stderr says why, once.
///
/// Not to be called under the lock, which it takes the first time.
pub(crate) fn answers_for(pid: i32) -> bool {
    let Some(backend) = settings().module else { return false };
    if pid.cast_unsigned() != std::process::id() {
        return false;
    }
    if IS_TRIED.load(Ordering::Acquire) {
        return IS_MADE.load(Ordering::Relaxed);
    }
    let is_made = || {
        let mut state = state();
        if let State::Untried = *state {
            *state = match catch_unwind(|| Own::new(backend)) {
                Ok(Ok(own)) => State::Made(Box::new(own)),
                Ok(Err(why)) => {
                    announce(format_args!("{backend} is not used: {why}"));
                    State::Refused
                }
                Err(_) => State::Refused,
            };
        }
        IS_MADE.store(matches!(*state, State::Made(_)), Ordering::Relaxed);
        IS_TRIED.store(true, Ordering::Release);
        IS_MADE.load(Ordering::Relaxed)
    };
    lock::hold(is_made).unwrap_or(false)
}

/// In a forked child: the tracker is the parent's.
pub(crate) fn forget() {
    *state() = State::Untried;
    IS_TRIED.store(false, Ordering::Release);
}

/// Answer the "4", under the lock. `None`: the module does not answer.
pub(crate) fn clear(pid: i32) -> Option<Result<(), c_int>> {
    with_own(pid, Own::clear).map(|done| done.unwrap_or(Err(libc::EIO)))
}

/// Answer a read of entries from `offset` of the file on into `pieces`, under the lock: how many bytes. `None`: the
/// kernel is to answer, also for what is no whole number of entries of user space.
///
/// # Safety
/// The pieces are the caller's to change.
pub(crate) unsafe fn read(pid: i32, offset: i64, pieces: &[iovec]) -> Option<usize> {
    let size = size_of::<Entry>();
    let offset = usize::try_from(offset).ok()?;
    let length = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len))?;
    if !offset.is_multiple_of(size) || pieces.iter().any(|piece| !piece.iov_len.is_multiple_of(size)) {
        return None;
    }
    let start = (offset / size).checked_mul(page_size())?;
    let range = PageRange::from_length(start, (length / size).checked_mul(page_size())?).ok()?;
    // Where user space ends here the kernel knows; it is below that of the largest processor.
    if range.end() >= 1 << 47 {
        return None;
    }
    with_own(pid, |own| {
        let unwatched = own.look(range);
        let mut at = start;
        for piece in pieces {
            let count = piece.iov_len / size;
            let end = at + count * page_size();
            // SAFETY: the caller's buffer, as it says. Where it may not be written the program takes SIGSEGV.
            unsafe {
                let entries = Filled::new(piece.iov_base.cast(), count, at, end);
                [&own.found, &own.fresh, &unwatched].into_iter().for_each(|dirty| entries.mark(dirty));
            }
            at = end;
        }
        length
    })
    .and_then(|done| done)
}

/// Do it with the tracker of this process; `Some(None)` after a panic, which leaves everything dirty.
fn with_own<T>(pid: i32, body: impl FnOnce(&mut Own) -> T) -> Option<Option<T>> {
    if settings().module.is_none() || pid.cast_unsigned() != std::process::id() {
        return None;
    }
    let mut state = state();
    let State::Made(own) = &mut *state else { return None };
    let done = catch_unwind(AssertUnwindSafe(|| body(own))).ok();
    if done.is_none() {
        own.doubt();
    }
    Some(done)
}

/// The entries of the pages from `at` to `end`.
struct Filled {
    entries: *mut Entry,
    at: usize,
    end: usize,
}

impl Filled {
    const PRESENT: Entry = Entry(1 << 63);

    /// All of them present and clean.
    ///
    /// # Safety
    /// There is room for `count` at `entries`, of any alignment, until the last use of the value.
    unsafe fn new(entries: *mut Entry, count: usize, at: usize, end: usize) -> Self {
        let filled = Filled { entries, at, end };
        (0..count).for_each(|index| filled.put(index, Self::PRESENT));
        filled
    }

    fn put(&self, index: usize, entry: Entry) {
        // SAFETY: within the room; not by a reference, for it may be unaligned.
        unsafe { self.entries.add(index).write_unaligned(entry) };
    }

    /// Those in `dirty`, ranges in order, are dirty.
    fn mark(&self, dirty: &[PageRange]) {
        let first = dirty.partition_point(|range| range.end() <= self.at);
        for range in dirty[first..].iter().take_while(|range| range.start() < self.end) {
            let (from, to) = (range.start().max(self.at), range.end().min(self.end));
            let pages = (from - self.at) / page_size()..(to - self.at) / page_size();
            pages.for_each(|index| self.put(index, Self::PRESENT.with_soft_dirty(true)));
        }
    }
}

impl Own {
    fn new(backend: BackendKind) -> Result<Self, String> {
        let mechanism = match backend {
            BackendKind::Spml => abi::SPML,
            BackendKind::Epml => abi::EPML,
            _ => abi::DBIT,
        };
        let device = Device::open(mechanism)?;
        device
            .attach(std::process::id().cast_signed(), mechanism)
            .map_err(|error| format!("the module trapless_dirty refuses the own process: {error}"))?;
        say(format_args!("the own process is tracked by {backend}"));
        Ok(Own {
            backend,
            device,
            watched: Vec::new(),
            found: Vec::new(),
            fresh: Vec::new(),
            holes: Vec::new(),
            pass: 0,
            room: vec![abi::Range::default(); ROOM],
            begun: None,
            is_cleared: false,
            is_in_doubt: false,
        })
    }

    /// From now on everything is dirty.
    fn doubt(&mut self) {
        (self.is_cleared, self.is_in_doubt) = (false, true);
    }

    fn clear(&mut self) -> Result<(), c_int> {
        if self.is_in_doubt {
            *self = Own::new(self.backend).map_err(|why| {
                say(format_args!("all of the own process reads dirty: {why}"));
                libc::EOPNOTSUPP
            })?;
        } else if self.begun.is_none() && !self.collects() {
            // Nobody has looked since the last clear, so all that was written is to be forgotten; it cannot be.
            return Err(libc::EIO);
        }
        self.found.clear();
        self.fresh.clear();
        self.begun = None;
        self.pass += 1;
        self.is_cleared = true;
        Ok(())
    }

    /// See that `found` and `fresh` have what is dirty of `range`, but for what is returned: unwatched, so dirty.
    fn look(&mut self, range: PageRange) -> Vec<PageRange> {
        if self.is_cleared && self.begun.is_none_or(|begun| begun == range.start()) {
            self.collects();
        }
        if !self.is_cleared {
            return vec![range];
        }
        self.begun.get_or_insert(range.start());
        let mut unwatched = Vec::new();
        for gap in gaps(range, &self.watched) {
            for piece in self.news_of(gap) {
                // Where it cannot be watched, it is tried again when it is asked about again.
                if let Err(error) = self.device.watch(piece) {
                    say(format_args!("{piece} reads dirty: {error}"));
                    continue;
                }
                insert(&mut self.watched, piece);
                insert(&mut self.fresh, piece);
            }
            unwatched.push(gap);
        }
        unwatched
    }

    /// What is mapped in a gap between what is watched, unless it was looked at a short while ago.
    fn news_of(&mut self, gap: PageRange) -> Vec<PageRange> {
        let pass = self.pass;
        if let Some(hole) = self.holes.iter_mut().find(|hole| hole.range == gap) {
            if pass < hole.due {
                return Vec::new();
            }
            hole.wait = (2 * hole.wait).min(LONGEST_WAIT);
            hole.due = pass + hole.wait;
        } else {
            self.holes.retain(|hole| hole.due + LONGEST_WAIT > pass);
            self.holes.push(Hole { range: gap, due: pass + 1, wait: 1 });
        }
        mapped(gap)
    }

    /// Collect; whether it could be done. If not, everything is dirty.
    fn collects(&mut self) -> bool {
        if let Err(error) = self.collect() {
            say(format_args!("all of the own process reads dirty: {error}"));
            self.doubt();
        }
        !self.is_in_doubt
    }

    fn collect(&mut self) -> io::Result<()> {
        let is_first = self.found.is_empty();
        if self.device.collect()? {
            self.found.extend_from_slice(&self.watched);
        }
        loop {
            let found = self.device.read(&mut self.room)?;
            for range in found {
                let range = PageRange::new(range.start as usize, range.end as usize);
                self.found
                    .push(range.map_err(|_| io::Error::other("READ stored what is no range of pages"))?);
            }
            if found.len() < ROOM {
                break;
            }
        }
        // What comes with a further call, or a further collect, may be in any place.
        if !is_first || !self.found.is_sorted() {
            self.join();
        }
        // The module does not notice what mremap puts in a hole; that there was one, it does.
        for range in with_holes(&self.watched) {
            self.device.unwatch(range)?;
            self.watched.retain(|watched| *watched != range);
        }
        Ok(())
    }

    /// Sort what was found, and join what overlaps.
    fn join(&mut self) {
        self.found.sort_unstable();
        let mut joined: Vec<PageRange> = Vec::with_capacity(self.found.len());
        for range in self.found.drain(..) {
            let both = joined.last().filter(|last| range.start() <= last.end());
            let both = both.and_then(|last| PageRange::new(last.start(), last.end().max(range.end())).ok());
            match (both, joined.last_mut()) {
                (Some(both), Some(last)) => *last = both,
                _ => joined.push(range),
            }
        }
        self.found = joined;
    }
}

/// Put `range` in its place among `ranges`, none of which it overlaps.
fn insert(ranges: &mut Vec<PageRange>, range: PageRange) {
    ranges.insert(ranges.partition_point(|other| other.start() < range.start()), range);
}

/// The pieces of `range` in none of `ranges`, which are sorted and apart from each other.
fn gaps(range: PageRange, ranges: &[PageRange]) -> Vec<PageRange> {
    let mut found = Vec::new();
    let mut at = range.start();
    let first = ranges.partition_point(|other| other.end() <= range.start());
    for other in ranges[first..].iter().take_while(|other| other.start() < range.end()) {
        found.extend(PageRange::new(at, other.start().max(at)));
        at = other.end();
    }
    found.extend(PageRange::new(at, range.end().max(at)));
    found
}

/// Whether all of it is mapped.
fn is_mapped(range: PageRange) -> bool {
    // SAFETY: since Linux 2.6.19 MS_ASYNC does nothing but look whether there are mappings.
    unsafe { libc::msync(range.start() as *mut _, range.len(), libc::MS_ASYNC) == 0 }
}

/// Those of `ranges`, which are sorted and apart from each other, that are not mapped as a whole. Asks about neighbours
/// together.
fn with_holes(ranges: &[PageRange]) -> Vec<PageRange> {
    let mut found = Vec::new();
    for neighbours in ranges.chunk_by(|one, next| one.end() == next.start()) {
        let (Some(first), Some(last)) = (neighbours.first(), neighbours.last()) else { continue };
        let is_whole = PageRange::new(first.start(), last.end()).is_ok_and(is_mapped);
        if !is_whole {
            found.extend(neighbours.iter().copied().filter(|range| !is_mapped(*range)));
        }
    }
    found
}

/// The end of `range` that is mapped without a hole, and the beginning; nothing of what lies between holes.
fn mapped(range: PageRange) -> Vec<PageRange> {
    if is_mapped(range) {
        return vec![range];
    }
    let page = |index: usize| range.start() + index * page_size();
    // How many pages at most are mapped of those that `of` names: fewer are, too.
    let most = |of: &dyn Fn(usize) -> Option<PageRange>| {
        let (mut some, mut none) = (0, range.pages());
        while some + 1 < none {
            let middle = some + (none - some) / 2;
            if of(middle).is_some_and(is_mapped) { some = middle } else { none = middle }
        }
        of(some)
    };
    let beginning = most(&|pages| PageRange::new(range.start(), page(pages)).ok());
    let end = most(&|pages| PageRange::new(page(range.pages() - pages), range.end()).ok());
    beginning.into_iter().chain(end).collect()
}
