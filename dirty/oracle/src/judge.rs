// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracker's client that keeps a copy, and compares it with the memory whenever the program holds still.
//!
//! Invariant: the copy of a watched page changes only when a collect reported the page (or `watch` returned). What
//! differs in [`Judge::check`] was therefore not reported, whatever the cause.

use libdirty::{PageRange, Reason, Sees, page_size};

use crate::memory::{Mapping, Memory};
use crate::op::{Backing, Op};
use crate::outcome::{Outcome, Stop};
use crate::perform::ARENA;
use crate::shadow::{Content, Shadow};
use crate::subject::Subject;
use crate::tracker::{Record, Reported, State, Tracker};
use crate::workload::{Target, Workload};

/// What to judge.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Who is judged.
    pub subject: Subject,
    /// Which process is tracked.
    pub target: Target,
    /// How long racing scenarios race.
    pub seconds: f64,
}

/// Shadow, tracker, program.
#[derive(Debug)]
pub struct Judge {
    /// What is judged.
    pub setup: Setup,
    /// What was counted so far.
    pub outcome: Outcome,
    tracker: Box<dyn Tracker>,
    workload: Workload,
    memory: Memory,
    shadow: Shadow,
    ranges: Vec<PageRange>,
    /// Reported, and not copied yet.
    pending: Vec<Reported>,
    /// Mapped while the last watch was going on, and not collected as a whole since.
    young: Vec<PageRange>,
    /// Nothing was written while the last copies were made.
    quiet: bool,
    /// Memory that other processes may write is not compared, if the tracker does not promise to see their writes.
    others_write: bool,
    maps: usize,
}

impl Judge {
    /// Start the program and a tracker on it.
    ///
    /// # Errors
    /// A skip when the back end does not work here.
    pub fn new(setup: Setup) -> Result<Self, Stop> {
        let workload = Workload::start(setup.target)?;
        Self::of(setup, workload)
    }

    /// Track process `pid`, a program that takes no operations and may share memory with others.
    ///
    /// # Errors
    /// A skip when the back end cannot track it.
    pub fn of_process(subject: Subject, pid: i32) -> Result<Self, Stop> {
        let setup = Setup { subject, target: Target::Other, seconds: 0.0 };
        let mut judge = Self::of(setup, Workload::Lent(pid))?;
        judge.others_write = true;
        Ok(judge)
    }

    /// A second one of the same program, with a tracker and a copy of its own. The program stays with the first.
    ///
    /// # Errors
    /// A skip when the back end cannot track a process twice.
    pub fn beside(&self) -> Result<Self, Stop> {
        Self::of(self.setup.clone(), Workload::Lent(self.workload.pid()))
    }

    /// End a judge that [`Judge::beside`] made; what it counted is counted here.
    pub fn join(&mut self, other: Judge) {
        let Outcome { missed, spurious, pages, collects, writes, doubts, notes, failures } = other.outcome;
        self.outcome.missed += missed;
        self.outcome.spurious += spurious;
        self.outcome.pages += pages;
        self.outcome.collects += collects;
        self.outcome.writes += writes;
        doubts.into_iter().for_each(|(why, pages)| *self.outcome.doubts.entry(why).or_default() += pages);
        self.outcome.notes.extend(notes);
        self.outcome.failures.extend(failures);
    }

    fn of(setup: Setup, workload: Workload) -> Result<Self, Stop> {
        Ok(Judge {
            tracker: setup.subject.open(setup.target, workload.pid())?,
            setup,
            outcome: Outcome::default(),
            memory: Memory::open(workload.pid())?,
            workload,
            shadow: Shadow::default(),
            ranges: Vec::new(),
            pending: Vec::new(),
            young: Vec::new(),
            quiet: true,
            others_write: false,
            maps: 0,
        })
    }

    /// What the tracker promises.
    #[must_use]
    pub fn record(&self) -> &Record {
        self.tracker.record()
    }

    /// What is watched.
    #[must_use]
    pub fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// The program.
    pub fn workload(&mut self) -> &mut Workload {
        &mut self.workload
    }

    /// The program's memory, as the kernel shows it.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Do one operation that must succeed.
    ///
    /// # Errors
    /// When it does not.
    pub fn perform(&mut self, op: Op) -> Result<i64, Stop> {
        let result = self.workload.perform(op).map_err(|error| Stop::fail(format!("{op:?}: {error}")))?;
        if op == Op::StopWriters {
            self.outcome.writes += result.cast_unsigned();
        }
        Ok(result)
    }

    /// Choose addresses for `pages` pages, far from others and at the border of a huge page.
    #[must_use]
    pub fn place(&mut self, pages: usize) -> Area {
        self.maps += 1;
        Area { start: ARENA + (self.maps << 36), pages }
    }

    /// Map memory at a place of its own.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn map(&mut self, pages: usize, backing: Backing) -> Result<Area, Stop> {
        let area = self.place(pages);
        self.perform(Op::Map { at: area.start, length: area.len(), backing, replace: false })?;
        Ok(area)
    }

    /// Write one byte in each of these pages.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn touch(&mut self, area: Area, step: usize, value: u8) -> Result<(), Stop> {
        let step = step * page_size();
        self.perform(Op::Touch { at: area.start, length: area.len(), step, value }).map(|_| ())
    }

    /// See that the program still finds what it wrote by [`Judge::touch`]. A tracker that clears a dirty bit without
    /// passing it on makes the kernel drop the page and lose its content; a correct copy does not help then.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn expect(&mut self, area: Area, step: usize, value: u8) -> Result<(), Stop> {
        let step = step * page_size();
        let lost = self.perform(Op::Differing { at: area.start, length: area.len(), step, value })?;
        if lost != 0 {
            self.outcome.failures.push(format!("{lost} pages have lost what the program wrote to them"));
        }
        Ok(())
    }

    /// Watch a range, and copy what it holds.
    ///
    /// # Errors
    /// The tracker's.
    pub fn watch(&mut self, area: Area) -> Result<(), Stop> {
        let range = area.range();
        let before = self.memory.mappings()?;
        self.tracker.watch(range)?;
        let mappings = self.memory.mappings()?;
        self.young.extend(mappings.iter().flat_map(|mapping| holes(mapping.range, &before)));
        let shadow = &mut self.shadow;
        self.memory.visit(range, &mappings, |address, content| shadow.set(address, content))?;
        self.ranges.push(range);
        self.ranges.sort_unstable();
        Ok(())
    }

    /// Stop watching a range.
    ///
    /// # Errors
    /// The tracker's.
    pub fn unwatch(&mut self, area: Area) -> Result<(), Stop> {
        let range = area.range();
        self.tracker.unwatch(range)?;
        self.copy()?; // else what is pending would come back
        self.shadow.forget(range);
        for other in std::mem::take(&mut self.ranges) {
            if range.intersection(other).is_none() {
                self.ranges.push(other);
            } else {
                self.ranges.extend(PageRange::new(other.start(), range.start()));
                self.ranges.extend(PageRange::new(range.end(), other.end()));
            }
        }
        Ok(())
    }

    /// The program has ended or replaced its memory: hold the tracker against what it promises of that.
    ///
    /// # Errors
    /// When it breaks the promise.
    pub fn check_ended(&mut self, reason: Reason) -> Result<(), Stop> {
        self.tracker.check_ended(&self.ranges, reason)?;
        self.outcome.collects += 1;
        let pages: usize = self.ranges.iter().map(|range| range.pages()).sum();
        *self.outcome.doubts.entry(reason.text().into()).or_default() += pages as u64;
        Ok(())
    }

    /// In a forked child: hold the parent's tracker against what it promises of that.
    ///
    /// # Errors
    /// When it breaks the promise.
    pub fn check_forked(&mut self) -> Result<(), Stop> {
        self.tracker.check_forked()
    }

    /// Collect while the program writes, and copy later: at the next [`Judge::copy`] or [`Judge::check`].
    ///
    /// # Errors
    /// The tracker's.
    pub fn collect_racing(&mut self) -> Result<(), Stop> {
        self.quiet = false;
        self.collect(None)?;
        Ok(())
    }

    /// The same of `area` alone.
    ///
    /// # Errors
    /// The tracker's.
    pub fn collect_part_racing(&mut self, area: Area) -> Result<(), Stop> {
        self.quiet = false;
        self.collect(Some(area.range()))?;
        Ok(())
    }

    /// Peek while the program writes; what was reported is not believed, and left to a collect.
    ///
    /// # Errors
    /// The tracker's.
    pub fn peek_racing(&mut self, area: Area) -> Result<(), Stop> {
        self.peeked(area.range())?;
        Ok(())
    }

    /// Collect a range, or everything; how many pages were reported.
    fn collect(&mut self, range: Option<PageRange>) -> Result<usize, Stop> {
        let (mut found, mut wrong) = (Vec::new(), Vec::new());
        match range {
            Some(range) => self.tracker.collect_range(range, &mut found, &mut wrong)?,
            None => self.tracker.collect(&mut found, &mut wrong)?,
        }
        self.outcome.collects += 1;
        self.forget_young(range.is_none())?;
        let reported = self.asked_for(range, found, &mut wrong);
        for Reported { range, state, why } in &reported {
            let pages = range.pages();
            if *state == State::Written {
                self.outcome.pages += pages as u64;
            } else {
                *self.outcome.doubts.entry((*why).into()).or_default() += pages as u64;
            }
        }
        wrong.into_iter().for_each(|what| self.outcome.fail(what));
        let pages = reported.iter().map(|part| part.range.pages()).sum();
        self.pending.extend(reported);
        Ok(pages)
    }

    /// A tracker that looked just before a mapping was made does not know of it until the next collect; if it is gone
    /// by then nobody reports it. `all`: this collect was of everything.
    fn forget_young(&mut self, all: bool) -> Result<(), Stop> {
        if self.young.is_empty() {
            return Ok(());
        }
        let mappings = self.memory.mappings()?;
        for hole in self.young.iter().flat_map(|range| holes(*range, &mappings)) {
            self.shadow.forget(hole);
        }
        if all {
            self.young.clear();
        }
        Ok(())
    }

    /// What a peek reports.
    fn peeked(&mut self, range: PageRange) -> Result<Vec<Reported>, Stop> {
        let (mut found, mut wrong) = (Vec::new(), Vec::new());
        self.tracker.peek_range(range, &mut found, &mut wrong)?;
        let reported = self.asked_for(Some(range), found, &mut wrong);
        wrong.into_iter().for_each(|what| self.outcome.fail(what));
        Ok(reported)
    }

    /// Those pages of `found` that are watched, and in `asked`; that there are others, or not in order, goes to `wrong`.
    fn asked_for(
        &self,
        asked: Option<PageRange>,
        found: Vec<Reported>,
        wrong: &mut Vec<String>,
    ) -> Vec<Reported> {
        let mut reported: Vec<Reported> = Vec::new();
        let mut end = 0;
        for part in found {
            let range = part.range;
            if range.start() < end {
                wrong.push(format!("{range} was reported twice, or out of order"));
            }
            end = range.end();
            let first = self.ranges.partition_point(|watched| watched.end() <= range.start());
            let watched = self.ranges[first..].iter().map_while(|watched| watched.intersection(range));
            let before = reported.len();
            let watched =
                watched.filter_map(|range| asked.map_or(Some(range), |asked| range.intersection(asked)));
            reported.extend(watched.map(|range| Reported { range, ..part }));
            let pages: usize = reported[before..].iter().map(|part| part.range.pages()).sum();
            if pages != range.pages() {
                wrong.push(format!("{range} was reported and is not watched, or was not asked for"));
            }
        }
        reported
    }

    /// Copy what was reported, in the order of the reports.
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub fn copy(&mut self) -> Result<(), Stop> {
        let mappings = self.memory.mappings()?;
        for Reported { range, state, .. } in std::mem::take(&mut self.pending) {
            if state == State::Gone {
                self.shadow.forget(range);
                continue;
            }
            if state == State::Zero {
                // What is mapped of it: a range may be far larger.
                let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
                let mapped = mappings[first..].iter().map_while(|mapping| mapping.range.intersection(range));
                mapped.for_each(|part| self.shadow.clear(part));
                continue;
            }
            let count = self.quiet && state == State::Written;
            let (shadow, outcome) = (&mut self.shadow, &mut self.outcome);
            self.memory.visit(range, &mappings, |address, content| {
                if count && shadow.get(address).is_some_and(|old| old.is_same(content)) {
                    outcome.spurious += 1;
                }
                shadow.set(address, content);
            })?;
        }
        Ok(())
    }

    /// The program holds still: collect, copy, and compare everything.
    ///
    /// # Errors
    /// The tracker's. A difference is no error; it is counted.
    pub fn check(&mut self) -> Result<(), Stop> {
        self.collect(None)?;
        self.compare(&self.ranges.clone())?;
        self.quiet = true;
        Ok(())
    }

    /// The program holds still: collect `area` alone, copy, and compare it. Returns how many pages were reported.
    ///
    /// # Errors
    /// The tracker's. A difference is no error; it is counted.
    pub fn check_part(&mut self, area: Area) -> Result<usize, Stop> {
        let pages = self.collect(Some(area.range()))?;
        self.compare(&[area.range()])?;
        Ok(pages)
    }

    /// The program holds still: peek. What differs from the copy must be reported; the copy stays as it is.
    ///
    /// # Errors
    /// The tracker's. A difference is no error; it is counted.
    pub fn peek(&mut self, area: Area) -> Result<(), Stop> {
        self.copy()?;
        let reported = self.peeked(area.range())?;
        let mappings = self.memory.mappings()?;
        let (shadow, outcome) = (&self.shadow, &mut self.outcome);
        self.memory.visit(area.range(), &mappings, |address, content| {
            let is_same = shadow.get(address).is_some_and(|old| old.is_same(content));
            let next = reported.partition_point(|part| part.range.end() <= address);
            let is_reported = reported.get(next).is_some_and(|part| part.range.contains_address(address));
            if !is_same && !is_reported {
                outcome.miss(address, 1, "differs from the copy and a peek did not report it");
            }
        })?;
        Ok(())
    }

    /// Copy what was reported, and hold the copy of `ranges` against the memory.
    fn compare(&mut self, ranges: &[PageRange]) -> Result<(), Stop> {
        self.copy()?;
        let mut mappings = self.memory.mappings()?;
        let Record { reports_gone, shared_aliases, .. } = *self.tracker.record();
        let (shadow, outcome) = (&mut self.shadow, &mut self.outcome);
        let holes: Vec<_> = ranges.iter().flat_map(|range| holes(*range, &mappings)).collect();
        if self.others_write && shared_aliases != Sees::Yes {
            mappings.retain(|mapping| mapping.is_private);
        }
        for range in ranges {
            self.memory.visit(*range, &mappings, |address, content| {
                let what = match shadow.get(address) {
                    None if !reports_gone && Content::Zero.is_same(content) => return,
                    None => "is mapped and was never reported",
                    Some(old) if !old.is_same(content) => &difference(old, content),
                    Some(_) => return,
                };
                outcome.miss(address, 1, what);
                shadow.set(address, content);
            })?;
        }
        for hole in holes {
            let forgotten = shadow.forget(hole);
            if forgotten > 0 && reports_gone {
                outcome.miss(hole.start(), forgotten, "is no longer mapped and that was not reported");
            }
        }
        Ok(())
    }

    /// Do something while the program, which is another process, is stopped by a signal; one that somebody has
    /// stopped stays so.
    ///
    /// # Errors
    /// When it does not stop, and those of `work`.
    pub fn stopped(&mut self, work: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        let pid = self.workload.pid();
        let was_stopped = self.memory.is_stopped_by_a_signal()?;
        // SAFETY: (here and below) a signal to a process that is tracked.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        while !self.memory.is_stopped()? {
            std::thread::yield_now();
        }
        let done = work(self);
        if !was_stopped {
            // SAFETY: as above.
            unsafe { libc::kill(pid, libc::SIGCONT) };
        }
        done
    }

    /// Untrack the program and see that it goes on unharmed.
    ///
    /// # Errors
    /// When it does not.
    pub fn finish(self) -> Result<Outcome, Stop> {
        let Judge { tracker, mut workload, outcome, .. } = self;
        drop(tracker);
        workload.perform(Op::Ping).map_err(|error| Stop::fail(format!("after tracking: {error}")))?;
        Ok(outcome)
    }
}

fn difference(old: Content<'_>, new: Content<'_>) -> String {
    let zeros = vec![0; page_size()];
    let [old, new] = [old, new].map(|content| match content {
        Content::Zero => &zeros,
        Content::Bytes(bytes) => bytes,
    });
    let at = old.iter().zip(new).position(|(old, new)| old != new).unwrap_or(0);
    format!("holds {:#x} at byte {at:#x}, the copy {:#x}", new[at], old[at])
}

/// What of `range` is not mapped; the mappings are in order.
fn holes(range: PageRange, mappings: &[Mapping]) -> Vec<PageRange> {
    let mut holes = Vec::new();
    let mut at = range.start();
    let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
    for part in mappings[first..].iter().map_while(|mapping| mapping.range.intersection(range)) {
        holes.extend(PageRange::new(at, part.start()));
        at = part.end();
    }
    holes.extend(PageRange::new(at, range.end()));
    holes
}

/// A run of pages to play with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: usize,
    /// How many.
    pub pages: usize,
}

impl Area {
    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // none is empty
    pub fn len(self) -> usize {
        self.pages * page_size()
    }

    /// Address of page `index`.
    #[must_use]
    pub fn page(self, index: usize) -> usize {
        self.start + index * page_size()
    }

    /// `pages` pages from page `first` on.
    #[must_use]
    pub fn part(self, first: usize, pages: usize) -> Area {
        Area { start: self.page(first), pages }
    }

    /// As libdirty wants it.
    ///
    /// # Panics
    /// When it has no pages.
    #[must_use]
    pub fn range(self) -> PageRange {
        PageRange::from_length(self.start, self.len()).expect("an area is a range of pages")
    }
}
