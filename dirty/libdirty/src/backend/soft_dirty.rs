// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's soft-dirty bit: bit 55 of `/proc/PID/pagemap`, cleared by `/proc/PID/clear_refs`.
//!
//! Reading the bits and clearing them are two steps, and clearing is for the whole process. From before the first to
//! after the second the threads of the process are stopped (`stop`): a write comes before both, and its page is
//! reported, or after both, and sets the bit again. Each such *harvest* covers all watched memory. What it finds is
//! kept in a bitmap of each part until a collect reports it, because arming more memory needs a harvest as well. If
//! the threads cannot be stopped, everything is reported ([`Reason::NotStopped`]).
//!
//! In private memory the part's bitmap holds the pages that had content of their own at the last harvest (`content`).
//! A page that lost its content was discarded, and is reported. The first collect after memory was armed (or reported
//! whole) also reports all pages without content: they may have had some when the caller copied them. Any other page
//! that was empty and still is is not reported, whatever its bit says: in a new mapping, and in one that a new mapping
//! was merged with, every page has the bit. In shared memory an empty entry may stand for a page that was written and
//! then reclaimed with its bit: it is reported.
//!
//! The bits belong to the process. Two trackers of one process would clear each other's bits: the second is refused,
//! also in another program that uses this library (`claim`). A program that clears them without this library (a
//! checkpointer, a garbage collector) cannot be noticed, and makes writes go unseen: only one may use soft-dirty on
//! a process. The bits do not work for hugetlb pages.
//!
//! When a process tracks itself, writes of the library to its own memory during a harvest may be missed, if that
//! memory is watched at all.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Armed, Backend, Collection, Part, Place};
use crate::bitmap::Bitmap;
use crate::capability::BackendKind;
use crate::claim::Claim;
use crate::content::{Content, Contents};
use crate::descriptor::Descriptor;
use crate::extent::{Dirty, PageRange, Reason};
use crate::hugetlb;
use crate::news::{News, chunks};
use crate::pagemap::{self, Entry};
use crate::scratch::Scratch;
use crate::stop::Stopper;
use crate::target::Target;

#[derive(Debug)]
pub(super) struct SoftDirty {
    clear_refs: Descriptor<File>,
    records: Vec<Record>,
    contents: Contents,
    stopper: Stopper,
    huge: hugetlb::Sizes,
    _sole: Sole,
    _claim: Claim,
}

/// A part, or a piece of one.
#[derive(Debug, Clone)]
struct Record {
    range: PageRange,
    is_private: bool,
    /// A page without content reads as zeros, not as a file.
    is_anonymous: bool,
    /// Which pages had content; the part's bitmap.
    had: Arc<Bitmap>,
    /// Pages that harvests have found and no collect has reported.
    found: Arc<Bitmap>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No harvest has seen it.
    New,
    Watched,
    /// A harvest saw it while threads ran.
    Doubtful,
    /// A harvest could not see it.
    Gone,
}

impl SoftDirty {
    pub(super) fn open(target: &Target) -> Result<Self, String> {
        if !kernel_has_soft_dirty()? {
            return Err(
                "the kernel has no soft-dirty bit (CONFIG_MEM_SOFT_DIRTY; x86-64, s390 and 64-bit powerpc only)".into(),
            );
        }
        let claim = Claim::new(target)?;
        let sole = Sole::new(target.pid())?;
        let path = format!("{}/clear_refs", target.folder());
        let clear_refs = File::options().write(true).open(&path).and_then(Descriptor::new);
        Ok(SoftDirty {
            clear_refs: clear_refs.map_err(|error| format!("opening {path}: {error}"))?,
            records: Vec::new(),
            contents: Contents::new(target),
            stopper: Stopper::new(target)?,
            huge: hugetlb::Sizes::new(),
            _sole: sole,
            _claim: claim,
        })
    }

    /// Find what was written since the last harvest, and clear the bits.
    fn harvest(&mut self, target: &Target) {
        let held = self.stopper.hold().ok();
        // Nothing is allocated from here on: the threads may hold any lock.
        for record in &mut self.records {
            record.state = match record.look(target, &mut self.contents) {
                Err(_) => State::Gone,
                Ok(()) if record.state == State::Gone => State::Gone,
                Ok(()) if held.is_none() => State::Doubtful,
                Ok(()) => record.state,
            };
        }
        // Where this fails the bits stay, and the pages are reported once more.
        if self.clear_refs.is_intact() {
            let _ = (&*self.clear_refs).write(b"4");
        }
        drop(held);
    }
}

impl Record {
    /// Add the pages that the entries show as written to `found`, and update `had`.
    fn look(&self, target: &Target, contents: &mut Contents) -> std::io::Result<()> {
        for chunk in chunks(self.range, &self.had) {
            contents.read(target, chunk)?;
            let news = News::new(chunk, &self.had);
            let mut page = 0;
            for slot in 0..news.words() {
                let (word, mask) = news.mask(slot);
                let (mut written, mut own, mut empty, mut unknown) = (0, 0, 0, 0);
                let mut rest = mask;
                while rest != 0 {
                    let bit = rest & rest.wrapping_neg();
                    rest &= rest - 1;
                    let entry = contents.entry(page);
                    if entry.is_soft_dirty() {
                        written |= bit;
                    }
                    if entry.is_none() {
                        empty |= bit;
                    }
                    if self.is_private {
                        match contents.page(page) {
                            Content::Own => own |= bit,
                            Content::Behind => {}
                            Content::Unknown => (own, unknown) = (own | bit, unknown | bit),
                        }
                    }
                    page += 1;
                }
                let dirty = if self.is_private {
                    let stored = &self.had.words()[word];
                    let had = stored.load(Relaxed);
                    if had & mask != own {
                        stored.store(had & !mask | own, Relaxed);
                    }
                    let gone = had & mask & !own;
                    written & own | gone | own & !had | unknown
                } else {
                    written | empty
                };
                if dirty != 0 {
                    self.found.words()[word].fetch_or(dirty, Relaxed);
                }
            }
        }
        Ok(())
    }
}

impl Record {
    /// Report the pages that harvests have found, and the empty ones if the record is fresh.
    fn report(&self, dirty: &mut Dirty) {
        for chunk in chunks(self.range, &self.found) {
            let mut news = News::new(chunk, &self.found);
            news.take(&self.found);
            if !self.is_private {
                news.runs().for_each(|run| dirty.push(run, Reason::Written));
                continue;
            }
            let mut empty = News::new(chunk, &self.found);
            for slot in 0..news.words() {
                let (word, mask) = news.mask(slot);
                let had = self.had.words()[word].load(Relaxed);
                if self.had.is_fresh() {
                    news.add(slot, mask & !had);
                }
                if self.is_anonymous {
                    empty.add(slot, news.keep(slot, had));
                }
            }
            news.runs().for_each(|run| dirty.push(run, Reason::Written));
            empty.runs().for_each(|run| dirty.push(run, Reason::Discarded));
        }
    }
}

impl Backend for SoftDirty {
    fn kind(&self) -> BackendKind {
        BackendKind::SoftDirty
    }

    fn arm(&mut self, target: &Target, part: &Part, _place: &Place<'_>) -> Armed {
        if self.huge.is_huge(target, part.memory) {
            return Armed::Unsupported;
        }
        let Ok(found) = Bitmap::new(part.bitmap.range()) else { return Armed::Unsupported };
        self.records.push(Record {
            range: part.range,
            is_private: !part.memory.shared,
            is_anonymous: part.memory.is_private_anonymous(),
            had: part.bitmap.clone(),
            found: Arc::new(found),
            state: State::New,
        });
        Armed::Watched
    }

    fn settle(&mut self, target: &Target) {
        if self.records.iter().all(|record| record.state != State::New) {
            return;
        }
        self.harvest(target);
        for record in self.records.iter_mut().filter(|record| record.state == State::New) {
            // What was written before is known, but for what the caller's copy will hold.
            record.found.fill(record.range, false);
            record.had.set_fresh(true);
            record.state = State::Watched;
        }
    }

    fn disarm(&mut self, _target: &Target, range: PageRange, _mapped: bool) {
        self.records = std::mem::take(&mut self.records)
            .into_iter()
            .flat_map(|record| {
                let rest = record.range.without([range]);
                rest.into_iter().map(move |range| Record { range, ..record.clone() })
            })
            .collect();
    }

    fn collect(&mut self, target: &Target, work: &mut Collection<'_>) {
        self.harvest(target);
        self.records.sort_unstable_by_key(|record| record.range);
        for record in &self.records {
            match record.state {
                State::Gone => work.lost.push(record.range),
                State::Doubtful => {
                    work.dirty.push(record.range, Reason::NotStopped);
                    record.found.fill(record.range, false);
                }
                State::New | State::Watched => record.report(work.dirty),
            }
        }
        // Not before: the pieces of a part share their bits. What was reported whole will be copied only later.
        self.records.iter().for_each(|record| record.had.set_fresh(false));
        for record in self.records.iter_mut().filter(|record| record.state == State::Doubtful) {
            record.had.set_fresh(true);
            record.state = State::Watched;
        }
    }
}

/// Whether a page just written has the bit.
fn kernel_has_soft_dirty() -> Result<bool, String> {
    let error = |error: std::io::Error| format!("looking for the soft-dirty bit on a scratch page: {error}");
    let pagemap = File::open("/proc/self/pagemap").map_err(error)?;
    let scratch = Scratch::new(1).map_err(error)?;
    scratch.write(0);
    let mut entry = [Entry::default()];
    pagemap::read_into(&pagemap, scratch.range().start(), &mut entry).map_err(error)?;
    Ok(entry[0].is_soft_dirty())
}

/// Trackers of this program: the tracking process (a forked child has its own), and the tracked one.
static CLAIMS: Mutex<Vec<(u32, i32)>> = Mutex::new(Vec::new());

/// The right to clear the bits of one process, among the trackers of this program.
#[derive(Debug)]
struct Sole((u32, i32));

impl Sole {
    fn new(pid: i32) -> Result<Self, String> {
        let claim = (std::process::id(), pid);
        let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.contains(&claim) {
            return Err(format!(
                "another tracker of this program uses soft-dirty on process {pid}, and clearing is for the whole process"
            ));
        }
        claims.push(claim);
        Ok(Sole(claim))
    }
}

impl Drop for Sole {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
        claims.retain(|claim| *claim != self.0);
    }
}
