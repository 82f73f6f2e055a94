// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tracker: which ranges are watched, what is mapped there, and what a collect reports.
//!
//! Invariants:
//! - Every page of a watched range is at any time in exactly one state: *watched* (the back end finds writes),
//!   *constant* (cannot be written), *unsupported* (reported by every collect), or *not mapped*. A collect tries
//!   constant and unsupported memory again.
//! - A page leaves *watched* only in a collect that reports it, whatever the cause. Where the books and the kernel
//!   disagree, the page is reported.
//! - A collect reads the mappings first and asks the back end second. A change between the two shows in one of them:
//!   memory that was replaced is not armed (the back end returns it as *lost*, or finds all of it written); memory
//!   that was unmapped is missing from the mappings of the next collect.
//! - Memory is armed before it is reported, so it is watched already when the caller copies it.
//! - A page that was found is reported by the first collect that covers it, and by that alone: until then it is
//!   *pending* (`pending`).
//!
//! A collect of a range looks at that range alone where it can: where the books agree with the mappings, the back end
//! can do so now, and no memory there was armed since the last collect (of such memory all is told, once, for the whole
//! of what was armed together). Otherwise it looks at everything, and what it finds elsewhere is pending. A peek looks in
//! the same way, and all that it finds is pending.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{Armed, Backend, Collection, Part, Place};
use crate::bitmap::Bitmap;
use crate::capability::{BackendKind, Capabilities};
use crate::error::{Error, Result};
use crate::extent::{Dirty, PageRange, Reason};
use crate::maps::{Mapping, Memory, Unreadable};
use crate::pending::Pending;
use crate::room;
use crate::target::Target;

/// A run of mapped pages in the books.
#[derive(Debug)]
struct Region {
    range: PageRange,
    memory: Memory,
    state: State,
}

impl Region {
    /// For the back end, if it is watched.
    fn part(&self) -> Option<Part> {
        match &self.state {
            State::Watched(bitmap) => {
                Some(Part { range: self.range, memory: self.memory, bitmap: bitmap.clone() })
            }
            State::Constant | State::Unsupported => None,
        }
    }
}

#[derive(Debug, Clone)]
enum State {
    /// With the bitmap of the part that was armed.
    Watched(Arc<Bitmap>),
    Constant,
    Unsupported,
}

/// What becomes of what was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Taken,
    Pending,
}

/// Watches address ranges of one process and reports which pages were written.
///
/// - **Threads**: writes of every thread of the process are found. `collect` may run while they write.
/// - **Fork**: the child is not tracked; the parent still is. The child's copy of a tracker fails every call with
///   [`Error::Forked`], and dropping it does nothing.
/// - **Exec**: the memory is gone. The next collect reports every range with [`Reason::Exec`]; later ones fail
///   with [`Error::Gone`]. The same at exit, with [`Reason::Exited`].
/// - **Drop**: when the tracker is dropped, or its process dies, the target runs on untracked.
#[derive(Debug)]
pub struct Tracker {
    target: Target,
    backend: Box<dyn Backend>,
    rejected: Vec<(BackendKind, String)>,
    /// The process that made it.
    owner: u32,
    /// What the caller asked for: sorted, apart from each other.
    ranges: Vec<PageRange>,
    /// What is mapped in them, by the first address, without overlap.
    regions: BTreeMap<usize, Region>,
    /// What was found and not reported.
    pending: Pending,
    is_gone: bool,
}

/// What one collect looks at.
struct View {
    /// Where the books are brought in line with what is mapped: whole regions. `None`: everywhere.
    span: Option<PageRange>,
    /// What is mapped there.
    mappings: Vec<Mapping>,
    /// What the back end is to look at.
    parts: Vec<Part>,
    /// Memory that is new.
    fresh: Vec<(PageRange, Memory)>,
}

impl Tracker {
    /// A tracker that watches nothing yet. `backend` was opened for `target`; `rejected` are the back ends that were
    /// tried before it.
    pub(crate) fn new(
        target: Target,
        backend: Box<dyn Backend>,
        rejected: Vec<(BackendKind, String)>,
    ) -> Self {
        Tracker {
            target,
            backend,
            rejected,
            owner: std::process::id(),
            ranges: Vec::new(),
            regions: BTreeMap::new(),
            pending: Pending::default(),
            is_gone: false,
        }
    }

    /// The back end at work.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.backend.kind()
    }

    /// The cheaper back ends that `auto` tried for this process and that do not work, each with the reason.
    #[must_use]
    pub fn rejected(&self) -> &[(BackendKind, String)] {
        &self.rejected
    }

    /// What it can and cannot do.
    #[must_use]
    pub fn capabilities(&self) -> &'static Capabilities {
        self.backend().capabilities()
    }

    /// The watched ranges, in order.
    #[must_use]
    pub fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// Watch `range`. Its content at return is the baseline: later writes are reported.
    ///
    /// Nothing needs to be mapped there yet: what appears later is reported as [`Reason::NewMapping`] and watched.
    /// What the back end cannot watch is reported by every collect as [`Reason::Unsupported`]. What is mapped while this
    /// runs, and unmapped before the next collect, may never be reported.
    ///
    /// # Errors
    /// [`Error::BadRange`] when the range has the back end's own stack or data in it and the back end cannot watch
    /// these ([`Capabilities::whole_own_process`]); [`Error::Overlap`] when a part of the range is watched already;
    /// [`Error::Gone`], [`Error::Forked`].
    pub fn watch(&mut self, range: PageRange) -> Result<()> {
        self.check_usable()?;
        if self.target.is_own() && !self.capabilities().whole_own_process && runs_on(range) {
            return Err(Error::BadRange {
                start: range.start(),
                end: range.end(),
                why: "the caller's stack or data is in it, on which this back end serves faults: name smaller ranges",
            });
        }
        let at = self.ranges.partition_point(|other| other.end() <= range.start());
        if let Some(other) = self.ranges.get(at).filter(|other| other.start() < range.end()) {
            return Err(Error::Overlap(range, *other));
        }
        let mappings = match self.target.maps().within(&[range]) {
            Ok(mappings) => mappings,
            Err(Unreadable::Gone) => return Err(Error::Gone(self.target.pid())),
            Err(Unreadable::Failed(error)) => return Err(error),
        };
        self.backend.enclose(&mappings, range.end());
        for run in memory_runs(&mappings) {
            self.arm(run, &mappings, &[range]);
        }
        self.backend.settle(&self.target);
        self.ranges.insert(at, range);
        Ok(())
    }

    /// Watch all of user space, but for what is watched already: whatever the process has mapped, and will map.
    ///
    /// # Errors
    /// Those of [`Tracker::watch`] but [`Error::Overlap`]; then what was watched before is watched, and nothing else.
    pub fn watch_all(&mut self) -> Result<()> {
        let rest = PageRange::everything().without(self.ranges.iter().copied());
        for (count, range) in rest.iter().enumerate() {
            if let Err(error) = self.watch(*range) {
                for watched in &rest[..count] {
                    let _ = self.unwatch(*watched); // fails where the process is gone: nothing is watched then
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stop watching `range`, all of which must be watched. Writes not yet collected there are forgotten.
    ///
    /// # Errors
    /// [`Error::NotWatched`] when not all of it is watched; [`Error::Gone`], [`Error::Forked`].
    pub fn unwatch(&mut self, range: PageRange) -> Result<()> {
        self.check_usable()?;
        let overlapping = self.check_watched(range)?;
        self.forget(range);
        self.pending.forget(Some(range));
        let rest: Vec<_> =
            self.ranges[overlapping.clone()].iter().flat_map(|old| old.without([range])).collect();
        self.ranges.splice(overlapping, rest);
        Ok(())
    }

    /// Replace the content of `dirty` by the pages written since the last collect, or since they were watched. A write
    /// that races with the call is reported by this collect or by the next.
    ///
    /// Read the pages after the call: what is written after it returned is reported by the next collect.
    ///
    /// # Errors
    /// [`Error::Gone`] when exit or exec was reported before; [`Error::Forked`]; [`Error::System`] when the
    /// mappings cannot be read: nothing was collected then, and nothing is lost. Its source is `EBADF` when the calling
    /// program has closed a descriptor of the tracker: no later collect works either, and all is to be taken for dirty.
    pub fn collect(&mut self, dirty: &mut Dirty) -> Result<()> {
        self.report(None, Then::Taken, dirty)
    }

    /// The same for `range` alone, all of which must be watched. What was written elsewhere is reported by the first
    /// collect that covers it, whatever ranges are collected until then.
    ///
    /// `uffd-async`, `uffd-sync` and `mprotect` look at the range alone, for the cost of its pages, except once after
    /// memory in it was watched or mapped. The other back ends look at everything each time.
    ///
    /// # Errors
    /// Those of [`Tracker::collect`]; [`Error::NotWatched`] when not all of it is watched. [`Error::Gone`] is returned
    /// when exit or exec was reported for all of the range.
    pub fn collect_range(&mut self, range: PageRange, dirty: &mut Dirty) -> Result<()> {
        self.report(Some(range), Then::Taken, dirty)
    }

    /// Replace the content of `dirty` by what [`Tracker::collect`] would report now, and take nothing away: it is
    /// reported by the next collect all the same, with what was written until then. So copy pages after the collect that
    /// reports them, and not (or not only) after a peek.
    ///
    /// It costs what a collect costs, in the tracked process too: the pages are armed again.
    ///
    /// # Errors
    /// Those of [`Tracker::collect`].
    pub fn peek(&mut self, dirty: &mut Dirty) -> Result<()> {
        self.report(None, Then::Pending, dirty)
    }

    /// The same for `range` alone, as of [`Tracker::collect_range`].
    ///
    /// # Errors
    /// Those of [`Tracker::collect_range`].
    pub fn peek_range(&mut self, range: PageRange, dirty: &mut Dirty) -> Result<()> {
        self.report(Some(range), Then::Pending, dirty)
    }

    /// Begin anew: the next collect reports everything that is mapped in the ranges, as it does of new memory. For a
    /// caller who has lost what earlier collects reported; its next copy is a full one.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Forked`].
    pub fn start_over(&mut self) -> Result<()> {
        self.check_usable()?;
        // What is not in the books is new to the next collect, which arms it before it reports it.
        self.forget(PageRange::everything());
        self.pending.forget(None);
        Ok(())
    }

    fn check_owner(&self) -> Result<()> {
        if std::process::id() != self.owner {
            return Err(Error::Forked(self.owner));
        }
        Ok(())
    }

    fn check_usable(&self) -> Result<()> {
        self.check_owner()?;
        if self.is_gone {
            return Err(Error::Gone(self.target.pid()));
        }
        Ok(())
    }

    /// The numbers of the watched ranges that have pages in `range`, all of which is watched.
    fn check_watched(&self, range: PageRange) -> Result<std::ops::Range<usize>> {
        let first = self.ranges.partition_point(|other| other.end() <= range.start());
        let end = self.ranges.partition_point(|other| other.start() < range.end());
        let overlapping = first..end.max(first);
        if range.without(self.ranges[overlapping.clone()].iter().copied()).is_empty() {
            Ok(overlapping)
        } else {
            Err(Error::NotWatched(range))
        }
    }

    /// Replace the content of `dirty` by what there is to be reported within `range`; `None` is everything.
    fn report(&mut self, range: Option<PageRange>, then: Then, dirty: &mut Dirty) -> Result<()> {
        self.check_owner()?;
        range.map(|range| self.check_watched(range)).transpose()?;
        if !self.is_gone {
            self.find(range, dirty)?;
        } else if self.pending.is_empty(range) {
            return Err(Error::Gone(self.target.pid()));
        } else {
            dirty.clear();
        }
        let is_all_asked_for = range.is_none_or(|range| dirty.lies_in(range));
        if then == Then::Taken && is_all_asked_for && self.pending.is_empty(range) {
            return Ok(());
        }
        self.pending.put(dirty);
        match then {
            Then::Taken => self.pending.take(range, dirty),
            Then::Pending => self.pending.copy(range, dirty),
        }
        Ok(())
    }

    /// Find what was written within `range`, or more, since it was looked at last.
    fn find(&mut self, range: Option<PageRange>, found: &mut Dirty) -> Result<()> {
        self.target.check_descriptors()?;
        found.clear();
        let narrow = range.map_or(Ok(None), |range| self.view_within(range));
        let view = match narrow {
            Ok(Some(view)) => Ok(view),
            Ok(None) => self.view_all(found),
            Err(error) => Err(error),
        };
        match view.and_then(|view| self.look(view, found)) {
            Ok(()) => {
                found.finish();
                Ok(())
            }
            Err(Unreadable::Gone) => {
                let reason = if self.target.has_new_memory() { Reason::Exec } else { Reason::Exited };
                found.clear();
                self.ranges.iter().for_each(|range| found.push(*range, reason));
                self.is_gone = true;
                self.regions.clear();
                Ok(())
            }
            Err(Unreadable::Failed(error)) => Err(error),
        }
    }

    /// What is mapped in `span`, or in all watched ranges.
    fn mapped(&self, span: Option<PageRange>) -> std::result::Result<Vec<Mapping>, Unreadable> {
        self.target.maps().within(span.as_ref().map_or(&self.ranges[..], std::slice::from_ref))
    }

    /// Everything. Brings the books in line with what is mapped now, and reports what was unmapped.
    fn view_all(&mut self, found: &mut Dirty) -> std::result::Result<View, Unreadable> {
        let mappings = self.mapped(None)?;
        let fresh = self.compare(&memory_runs(&mappings), found);
        let parts = self.regions.values().filter_map(Region::part).collect();
        Ok(View { span: None, mappings, parts, fresh })
    }

    /// `range` alone; `None` where everything is to be looked at.
    fn view_within(&self, range: PageRange) -> std::result::Result<Option<View>, Unreadable> {
        let touched: Vec<_> = self.starts_within(range).iter().map(|start| &self.regions[start]).collect();
        let mut parts: Vec<_> = touched.iter().filter_map(|region| region.part()).collect();
        if parts.iter().any(|part| part.bitmap.is_fresh()) || !self.backend.collects_some(&parts) {
            return Ok(None);
        }
        let ends = touched.iter().map(|region| region.range).chain([range]);
        let span = ends
            .reduce(|one, two| PageRange::trusted(one.start().min(two.start()), one.end().max(two.end())));
        let mappings = self.mapped(span)?;
        let known = joined(touched.iter().map(|region| (region.range, region.memory)));
        if !known.eq(memory_runs(&mappings)) {
            return Ok(None);
        }
        for part in &mut parts {
            part.range = without_cutting_pages(range, part.range, &mappings);
        }
        Ok(Some(View { span, mappings, parts, fresh: Vec::new() }))
    }

    /// Have the back end look, and arm again what has to be.
    fn look(&mut self, view: View, found: &mut Dirty) -> std::result::Result<(), Unreadable> {
        let View { span, mappings, parts, mut fresh } = view;
        let mut lost = Vec::new();
        let limits = span.map_or_else(|| self.ranges.clone(), |span| vec![span]);
        self.backend.collect(
            &self.target,
            &mut Collection {
                parts: &parts,
                is_all: span.is_none(),
                mappings: &mappings,
                limits: &limits,
                dirty: found,
                lost: &mut lost,
            },
        );
        drop(parts);
        // Mappings that were replaced since they were read are read again.
        let mut again = mappings;
        if !lost.is_empty() {
            for range in &lost {
                self.forget_what_was(*range);
            }
            match self.mapped(span) {
                Ok(mappings) => again = mappings,
                Err(Unreadable::Gone) => return Err(Unreadable::Gone),
                // The back end has given its pages out, so failing would lose them. Go on with the first view.
                Err(Unreadable::Failed(_)) => {}
            }
            let runs = memory_runs(&again);
            for range in lost {
                // All of it is dirty; parts that are unmapped by now have nothing to copy.
                let first = runs.partition_point(|(run, _)| run.end() <= range.start());
                let there =
                    runs[first..].iter().map_while(|(run, memory)| Some((run.intersection(range)?, *memory)));
                let there: Vec<_> = there.collect();
                for hole in range.without(there.iter().map(|(run, _)| *run)) {
                    found.push(hole, Reason::Unmapped);
                }
                fresh.extend(there);
            }
        }
        // Constant memory may have been replaced by a writable mapping of the same file, which only arming it again
        // shows. Memory that could not be watched may be free now.
        for region in self.take_unwatched(span) {
            for (range, armed) in self.arm((region.range, region.memory), &again, &limits) {
                if !(matches!(region.state, State::Constant) && armed == Some(Armed::Constant)) {
                    found.push(range, reason_of(armed));
                }
            }
        }
        for run in fresh {
            for (range, armed) in self.arm(run, &again, &limits) {
                found.push(range, reason_of(armed));
            }
        }
        self.backend.settle(&self.target);
        Ok(())
    }

    /// Bring the books in line with what is mapped now: report what was unmapped, return what is new.
    fn compare(&mut self, now: &[(PageRange, Memory)], dirty: &mut Dirty) -> Vec<(PageRange, Memory)> {
        let known = self.regions.values().map(|region| (region.range, region.memory));
        if joined(known).eq(now.iter().copied()) {
            return Vec::new();
        }
        let mut kept: Vec<Region> = Vec::new();
        let mut first = 0;
        for region in std::mem::take(&mut self.regions).into_values() {
            while first < now.len() && now[first].0.end() <= region.range.start() {
                first += 1;
            }
            let mut there = Vec::new();
            for (run, memory) in &now[first..] {
                let Some(piece) = run.intersection(region.range) else { break };
                there.push(piece);
                if *memory == region.memory {
                    kept.push(Region { range: piece, memory: *memory, state: region.state.clone() });
                } else {
                    self.backend.disarm(&self.target, piece, false);
                }
            }
            for hole in region.range.without(there) {
                self.backend.disarm(&self.target, hole, false);
                dirty.push(hole, Reason::Unmapped);
            }
        }
        let mut fresh = Vec::new();
        let mut first = 0;
        for (run, memory) in now {
            while first < kept.len() && kept[first].range.end() <= run.start() {
                first += 1;
            }
            let holes = kept[first..].iter().map(|region| region.range);
            let holes = holes.take_while(|range| range.start() < run.end());
            fresh.extend(run.without(holes).into_iter().map(|range| (range, *memory)));
        }
        self.regions = kept.into_iter().map(|region| (region.range.start(), region)).collect();
        fresh
    }

    /// Take the regions of `span`, or all, that are not watched out of the books.
    fn take_unwatched(&mut self, span: Option<PageRange>) -> Vec<Region> {
        let (start, end) = span.map_or((0, usize::MAX), |span| (span.start(), span.end()));
        let is_unwatched = |region: &Region| !matches!(region.state, State::Watched(_));
        let unwatched = self.regions.range(start..end).filter(|(_, region)| is_unwatched(region));
        let starts: Vec<_> = unwatched.map(|(start, _)| *start).collect();
        starts.iter().filter_map(|start| self.regions.remove(start)).collect()
    }

    /// Where the regions begin that have pages in `range`, in order.
    fn starts_within(&self, range: PageRange) -> Vec<usize> {
        let below = self.regions.range(..range.end()).rev();
        let within = below.take_while(|(_, region)| region.range.end() > range.start());
        let mut starts: Vec<_> = within.map(|(start, _)| *start).collect();
        starts.reverse();
        starts
    }

    /// Watch a run of mapped pages that is not in the books, and enter it. Returns the outcome for each piece: `None`
    /// where nothing is mapped any more. `limits`: where the mappings were looked for.
    fn arm(
        &mut self,
        (range, memory): (PageRange, Memory),
        mappings: &[Mapping],
        limits: &[PageRange],
    ) -> Vec<(PageRange, Option<Armed>)> {
        let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
        let within: Vec<_> = mappings[first..]
            .iter()
            .map_while(|mapping| Some(Mapping { range: mapping.range.intersection(range)?, ..*mapping }))
            .collect();
        let rooms = room::around(range, mappings, limits);
        let (armed, state) = self.try_to_arm(range, memory, &Place { mappings: &within, rooms });
        let is_one = within.len() == 1 && within[0].range == range;
        if armed == Armed::Watched || is_one {
            self.enter(Region { range, memory, state });
            return vec![(range, Some(armed))];
        }
        // One mapping that cannot be watched makes the whole run fail: try each by itself.
        let mut pieces = Vec::new();
        for mapping in &within {
            let rooms = room::around(mapping.range, mappings, limits);
            let place = Place { mappings: std::slice::from_ref(mapping), rooms };
            let (armed, state) = self.try_to_arm(mapping.range, memory, &place);
            self.enter(Region { range: mapping.range, memory, state });
            pieces.push((mapping.range, Some(armed)));
        }
        let holes = range.without(within.iter().map(|mapping| mapping.range));
        pieces.extend(holes.into_iter().map(|hole| (hole, None)));
        pieces
    }

    fn try_to_arm(&mut self, range: PageRange, memory: Memory, place: &Place<'_>) -> (Armed, State) {
        // Without memory for the bitmap it cannot be watched.
        let Ok(bitmap) = Bitmap::new(range) else { return (Armed::Unsupported, State::Unsupported) };
        let bitmap = Arc::new(bitmap);
        let part = Part { range, memory, bitmap: bitmap.clone() };
        match self.backend.arm(&self.target, &part, place) {
            Armed::Watched => (Armed::Watched, State::Watched(bitmap)),
            Armed::Constant => (Armed::Constant, State::Constant),
            Armed::Unsupported => (Armed::Unsupported, State::Unsupported),
        }
    }

    fn enter(&mut self, region: Region) {
        self.regions.insert(region.range.start(), region);
    }

    /// Take `range` out of the books and of the back end's, with what has grown there since.
    fn forget(&mut self, range: PageRange) {
        if self.starts_within(range).is_empty() {
            return;
        }
        let mappings = self.mapped(Some(range)).unwrap_or_default();
        self.backend.release(&mappings, range.end());
        self.forget_what_was(range);
    }

    /// The same, of what is in the books alone.
    fn forget_what_was(&mut self, range: PageRange) {
        let starts = self.starts_within(range);
        for region in starts.iter().filter_map(|start| self.regions.remove(start)).collect::<Vec<_>>() {
            if let (State::Watched(_), Some(piece)) = (&region.state, region.range.intersection(range)) {
                self.backend.disarm(&self.target, piece, true);
            }
            for rest in region.range.without([range]) {
                self.enter(Region { range: rest, memory: region.memory, state: region.state.clone() });
            }
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        // A forked child has copies of descriptors that act on its parent's memory.
        // Nor is anything to be done by descriptors that are other files' by now.
        if std::process::id() == self.owner && !self.is_gone && self.target.check_descriptors().is_ok() {
            self.forget(PageRange::everything());
        }
    }
}

/// The reason with which memory that had to be armed is reported.
fn reason_of(armed: Option<Armed>) -> Reason {
    match armed {
        Some(Armed::Watched | Armed::Constant) => Reason::NewMapping,
        Some(Armed::Unsupported) => Reason::Unsupported,
        None => Reason::Unmapped,
    }
}

/// Whether `range` has memory in it that this process's fault handling runs on: its stack or its data.
fn runs_on(range: PageRange) -> bool {
    static DATA: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
    let stack = 0u8;
    range.contains_address(&raw const stack as usize) || range.contains_address(DATA.as_ptr() as usize)
}

/// The pages of `part` that are to be looked at for `range`: none of its pages is cut, however large they are.
fn without_cutting_pages(range: PageRange, part: PageRange, mappings: &[Mapping]) -> PageRange {
    let first = mappings.partition_point(|mapping| mapping.range.end() <= part.start());
    let within = mappings[first..].iter().take_while(|mapping| mapping.range.start() < part.end());
    // Of the mappings of one memory; it is not known of each kernel's.
    let size = within.map(|mapping| mapping.page_size).min().flatten();
    let Some(size) = size else { return part };
    let (start, end) = (range.start() / size * size, range.end().next_multiple_of(size));
    PageRange::trusted(start.max(part.start()), end.min(part.end()))
}

/// The mappings without their protections: runs of pages that show the same memory.
fn memory_runs(mappings: &[Mapping]) -> Vec<(PageRange, Memory)> {
    joined(mappings.iter().map(|mapping| (mapping.range, mapping.memory))).collect()
}

/// Neighbours that show the same memory, joined.
fn joined(pieces: impl Iterator<Item = (PageRange, Memory)>) -> impl Iterator<Item = (PageRange, Memory)> {
    let mut pieces = pieces.peekable();
    std::iter::from_fn(move || {
        let (mut run, memory) = pieces.next()?;
        while let Some((next, _)) =
            pieces.next_if(|(next, other)| next.start() == run.end() && *other == memory)
        {
            run = PageRange::trusted(run.start(), next.end());
        }
        Some((run, memory))
    })
}
