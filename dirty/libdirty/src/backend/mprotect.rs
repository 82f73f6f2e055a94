// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mprotect(2)` and a SIGSEGV handler, for the own process.
//!
//! Watched memory that the program may write is *armed* by making it read-only. The first store to a page faults;
//! the handler (`handler`) removes the page's protection and sets its bit; a collect takes the bits and protects
//! those pages again. `order` says why no write falls in between, `registry` how the handler finds what is watched.
//! In the part's bitmap, which the handler writes, 1 means *written since the last collect*.
//!
//! A collect arms only what it reports. A page that is writable and has no bit was made writable by the program, which
//! changed its protection or mapped other memory there: it is reported ([`Reason::ProtectionChanged`]) and armed anew.
//!
//! Discards do not fault. So in private memory a collect finds out, after arming, which pages have content of their
//! own, and compares with those that had some at the last collect (`content`, `history`). Shared memory does not need
//! this: a page that is discarded there reads as before.
//!
//! When the process runs out of mappings (`vm.max_map_count`), protection is removed from all memory around, and that
//! is reported as a whole ([`Reason::Overflow`]).
//!
//! Not seen, and impossible to see for this back end:
//! - A program makes watched memory writable by itself, writes, and makes it read-only again before the next collect.
//!   Or it makes watched memory read-only to catch stores by itself: the handler cannot distinguish its protection
//!   from ours. (Memory that was read-only at the last collect is left alone.)
//! - Writes through `/proc/PID/mem`, which ignore the protection.
//!
//! The kernel's own writes to armed memory fail with `EFAULT`. Armed memory that `mremap` moves or grows takes its
//! protection along to where the handler does not know it: a store there ends in SIGSEGV.

mod handler;
mod history;
mod order;
mod registry;
mod segments;
mod store;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use self::history::History;
use self::registry::{Watch, armed};
use super::{Armed, Backend, Collection, Part, Place};
use crate::capability::BackendKind;
use crate::content::Contents;
use crate::extent::{Dirty, PageRange, Reason};
use crate::maps::Mapping;
use crate::news::{News, chunks};
use crate::target::Target;

#[derive(Debug)]
pub(super) struct Mprotect {
    /// Names this tracker in the table.
    owner: usize,
    /// By the address of the part's bitmap, which the pieces of a part share.
    records: HashMap<usize, Record>,
    contents: Contents,
}

#[derive(Debug)]
struct Record {
    watch: Arc<Watch>,
    /// Private memory has one.
    history: Option<History>,
}

/// The memory could not be armed: no room for mappings, it is gone, or it must not be.
struct NotArmed;

/// Pages, and the protection that the program gave them.
type Protections = Vec<(PageRange, i32)>;

impl Mprotect {
    pub(super) fn open(target: &Target) -> Result<Self, String> {
        store::is_supported()?;
        static OWNERS: AtomicUsize = AtomicUsize::new(0);
        Ok(Mprotect {
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            records: HashMap::new(),
            contents: Contents::new(target),
        })
    }

    /// Take the bits of `part`, arm those pages, and report them and the discarded ones. Pages that are `writable`
    /// without a bit are reported as well.
    fn sweep(
        &mut self,
        target: &Target,
        part: &Part,
        writable: &[PageRange],
        dirty: &mut Dirty,
    ) -> Result<(), NotArmed> {
        let protections = registry::protections(part.range, Some(self.owner));
        let history = self.records.get(&name(part)).ok_or(NotArmed)?.history.as_ref();
        let is_news = |chunk: &PageRange| {
            part.bitmap.set_within(*chunk).next().is_some() || overlapping(writable, *chunk).next().is_some()
        };
        for chunk in chunks(part.range, &part.bitmap).filter(is_news) {
            let take = || {
                let mut news = News::new(chunk, &part.bitmap);
                news.take(&part.bitmap);
                for range in overlapping(writable, chunk) {
                    for unseen in news.fill(*range) {
                        dirty.push(unseen, Reason::ProtectionChanged);
                        registry::suspect(unseen, self.owner);
                    }
                }
                news
            };
            let protect = |news: News| news.runs().try_for_each(|run| arm(&protections, run));
            let (news, protected) = order::harvest(take, protect);
            protected?;
            for run in news.runs() {
                history.inspect(|history| history.enter(run));
                dirty.push(run, Reason::Written);
            }
        }
        self.look(target, part, |run| dirty.push(run, Reason::Written))
    }

    /// Report all of `part`, and arm it.
    fn sweep_all(
        &mut self,
        target: &Target,
        part: &Part,
        reason: Reason,
        dirty: &mut Dirty,
    ) -> Result<(), NotArmed> {
        let protections = registry::protections(part.range, Some(self.owner));
        let take = || part.bitmap.fill(part.range, false);
        order::harvest(take, |()| arm(&protections, part.range)).1?;
        self.look(target, part, |_| ())?;
        dirty.push(part.range, reason);
        Ok(())
    }

    /// Find out which pages of `part` have content, and where this has changed without a fault.
    fn look(&mut self, target: &Target, part: &Part, changed: impl FnMut(PageRange)) -> Result<(), NotArmed> {
        let record = self.records.get_mut(&name(part)).ok_or(NotArmed)?;
        let Some(history) = &mut record.history else { return Ok(()) };
        history.update(target, &mut self.contents, part, changed).map_err(|_| NotArmed)
    }

    /// Compare protections with those in the table. Returns what is writable now; enters what the program changed.
    fn writable(&self, part: &Part, mappings: &[Mapping]) -> Vec<PageRange> {
        let mut writable = Vec::new();
        let mut changed = Protections::new();
        let known = registry::protections(part.range, Some(self.owner));
        let mut known = known.iter().peekable();
        for mapping in within(mappings, part.range) {
            while let Some((range, protection)) = known.peek() {
                let piece = range.intersection(mapping.range);
                if let Some(piece) = piece.filter(|_| mapping.protection != armed(*protection)) {
                    writable.push(piece);
                    if mapping.protection != *protection {
                        changed.push((piece, mapping.protection));
                    }
                }
                if range.end() > mapping.range.end() {
                    break;
                }
                known.next();
            }
        }
        if !changed.is_empty() {
            let change = |table: &mut registry::Table| {
                for (range, protection) in &changed {
                    table.set_protection(*range, *protection, self.owner);
                }
            };
            registry::change(change, |()| ());
        }
        writable
    }
}

impl Backend for Mprotect {
    fn kind(&self) -> BackendKind {
        BackendKind::Mprotect
    }

    fn arm(&mut self, target: &Target, part: &Part, place: &Place<'_>) -> Armed {
        let mappings = place.mappings;
        if would_break_signals(part.range) {
            return Armed::Unsupported;
        }
        let history = if part.memory.shared { None } else { History::new(part.range).ok() };
        if history.is_none() && !part.memory.shared {
            return Armed::Unsupported;
        }
        let watch =
            Arc::new(Watch { owner: self.owner, written: part.bitmap.clone(), doubt: AtomicU32::new(0) });
        let protections = given(mappings, &registry::protections(part.range, None));
        let enter = |table: &mut registry::Table| {
            handler::prepare(table);
            for (range, protection) in &protections {
                table.add(*range, *protection, &watch);
            }
            for mapping in mappings.iter().filter(|mapping| mapping.protection & libc::PROT_WRITE != 0) {
                table.suspect(mapping.range, self.owner);
            }
        };
        let is_armed = registry::change(enter, |()| {
            handler::activate();
            arm(&protections, part.range).is_ok()
        });
        let mut begin = |history: &History| history.begin(target, &mut self.contents, part);
        let is_known = history.as_ref().is_none_or(|history| begin(history).is_ok());
        self.records.insert(name(part), Record { watch, history });
        if is_armed && is_known {
            return Armed::Watched;
        }
        self.disarm(target, part.range, true);
        Armed::Unsupported
    }

    fn disarm(&mut self, target: &Target, range: PageRange, mapped: bool) {
        if mapped {
            let now = target.maps().within(&[range]).ok();
            for (piece, protection) in registry::sole_protections(range, self.owner) {
                match &now {
                    // A protection that the program has set since stays.
                    Some(now) => within(now, piece)
                        .filter(|mapping| mapping.protection == armed(protection))
                        .filter_map(|mapping| mapping.range.intersection(piece))
                        .for_each(|piece| handler::lift(piece, protection)),
                    None => handler::lift(piece, protection),
                }
            }
        }
        let names = |removed: Vec<Arc<Watch>>| -> Vec<_> {
            removed.iter().map(|watch| Arc::as_ptr(&watch.written) as usize).collect()
        };
        for name in registry::change(|table| table.remove(range, self.owner), names) {
            // The table holds a watch as long as a piece of its part is watched.
            let is_unused = |record: &Record| Arc::strong_count(&record.watch) == 1;
            if self.records.get(&name).is_some_and(is_unused) {
                self.records.remove(&name);
            }
        }
    }

    /// Doubt concerns all of what was armed together.
    fn collects_some(&self, parts: &[Part]) -> bool {
        let has_doubt =
            |part: &Part| self.records.get(&name(part)).is_none_or(|record| record.watch.has_doubt());
        handler::is_on_top() && !parts.iter().any(has_doubt)
    }

    fn collect(&mut self, target: &Target, work: &mut Collection<'_>) {
        if !self.records.is_empty() && !handler::is_on_top() {
            // Faults may have been lost meanwhile.
            registry::change(handler::prepare, |()| handler::activate());
        }
        let doubts: HashMap<usize, Reason> = self
            .records
            .iter()
            // Doubt that was raised since `collects_some` waits for the next collect.
            .filter(|_| work.is_all)
            .filter_map(|(name, record)| Some((*name, record.watch.take_doubt()?)))
            .collect();
        for part in work.parts {
            let writable = self.writable(part, work.mappings);
            let swept = match doubts.get(&name(part)) {
                Some(reason) => self.sweep_all(target, part, *reason, work.dirty),
                None => self.sweep(target, part, &writable, work.dirty),
            };
            // Protecting all of it at once joins mappings, where single pages need new ones.
            let swept = swept.or_else(|NotArmed| self.sweep_all(target, part, Reason::Overflow, work.dirty));
            if let Err(NotArmed) = swept {
                work.lost.push(part.range);
            }
        }
    }
}

/// Those of the sorted `mappings` that have pages in `range`.
fn within(mappings: &[Mapping], range: PageRange) -> impl Iterator<Item = &Mapping> {
    let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
    mappings[first..].iter().take_while(move |mapping| mapping.range.start() < range.end())
}

/// What stands for a part and its pieces.
fn name(part: &Part) -> usize {
    Arc::as_ptr(&part.bitmap) as usize
}

/// Those of the sorted `ranges` that have pages in `chunk`.
fn overlapping(ranges: &[PageRange], chunk: PageRange) -> impl Iterator<Item = &PageRange> {
    let first = ranges.partition_point(|range| range.end() <= chunk.start());
    ranges[first..].iter().take_while(move |range| range.start() < chunk.end())
}

/// Make `run` read-only. Fails, too, where that would take more from memory than what is given back.
fn arm(protections: &[(PageRange, i32)], run: PageRange) -> Result<(), NotArmed> {
    let first = protections.partition_point(|(range, _)| range.end() <= run.start());
    for (range, protection) in &protections[first..] {
        let Some(piece) = range.intersection(run) else { break };
        if protection & libc::PROT_WRITE != 0
            && !(store::may_protect(*protection) && handler::protect(piece, armed(*protection)))
        {
            return Err(NotArmed);
        }
    }
    Ok(())
}

/// What protection the program gave the pages of `mappings`, of which those in `known` may be armed already: by
/// another tracker, or by one of the process that forked this one.
fn given(mappings: &[Mapping], known: &[(PageRange, i32)]) -> Protections {
    let mut given = Protections::new();
    for mapping in mappings {
        let first = known.partition_point(|(range, _)| range.end() <= mapping.range.start());
        let known = known[first..].iter().take_while(|(range, _)| range.start() < mapping.range.end());
        let is_armed = |(range, protection): &(PageRange, i32)| {
            (armed(*protection) == mapping.protection).then_some(())?;
            Some((range.intersection(mapping.range)?, *protection))
        };
        let pieces: Protections = known.filter_map(is_armed).collect();
        let rest = mapping.range.without(pieces.iter().map(|(range, _)| *range));
        given.extend(pieces);
        given.extend(rest.into_iter().map(|range| (range, mapping.protection)));
    }
    given.sort_unstable();
    given
}

/// Whether the kernel could not call a handler in this thread any more with `range` armed: it writes the
/// handler's frame to the alternate stack, or to the thread's own if it has none.
fn would_break_signals(range: PageRange) -> bool {
    // SAFETY: the struct is plain numbers and a pointer, for which zero is a value.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the kernel fills the struct.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    if stack.ss_flags & libc::SS_DISABLE != 0 {
        return range.contains_address(&raw const stack as usize);
    }
    let start = stack.ss_sp as usize;
    start < range.end() && range.start() < start + stack.ss_size
}
