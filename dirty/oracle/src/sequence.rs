// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generated programs: steps on a small window of memory, half of it left and half of it right of the border of two
//! page tables, where whole blocks and pieces of blocks are a few pages.
//!
//! Invariant: a sequence is a legal program. Steps are cut to pages that are mapped and may be touched in that way,
//! as far as the program itself has made them so; what is left of a step may be nothing.

use libdirty::{Sees, page_size};
use serde::{Deserialize, Serialize};

use crate::judge::{Area, Judge, Setup};
use crate::op::{Backing, Op, Way};
use crate::outcome::{Outcome, Stop, Verdict};
use crate::perform::ARENA;
use crate::scenario::huge_pages;

/// Pages in the window.
pub const WINDOW: usize = 96;
/// Pages that are mapped and watched at the beginning.
pub const BEGINNING: usize = 64;

/// Pages of the window: the first and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first.
    pub page: usize,
    /// How many.
    pub count: usize,
}

/// What a program does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the names say it
pub enum Step {
    Write(Span),
    Straddle(usize),
    Read(Span),
    KernelWrite(Span),
    Discard(Span),
    Unmap(Span),
    Map(Span, Backing),
    Move(Span, usize),
    Protect(Span, Access),
    Fork(Span),
    EndFork,
    Watch(Span),
    Unwatch(Span),
    Collect,
    CollectRange(Span),
    Peek(Span),
}

/// What the program lets itself do to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the names say it
pub enum Access {
    Nothing,
    Read,
    Write,
}

/// Steps, to be run in order and judged at each collect and at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence(pub Vec<Step>);

impl Sequence {
    /// Run it in this process.
    #[must_use]
    pub fn run(&self, setup: Setup) -> Verdict {
        let mut judge = match Judge::new(setup) {
            Ok(judge) => judge,
            Err(Stop::Skip(why)) => return Verdict::Skipped(why),
            Err(Stop::Fail(what)) => return failed(Outcome::default(), what),
        };
        match self.steps(&mut judge) {
            Ok(()) => {}
            Err(stop) => return failed(judge.outcome, stop.to_string()),
        }
        judge.finish().map_or_else(|stop| failed(Outcome::default(), stop.to_string()), Verdict::Done)
    }

    fn steps(&self, judge: &mut Judge) -> Result<(), Stop> {
        let mut program = Program::start(judge)?;
        for (number, step) in self.0.iter().enumerate() {
            program
                .take(judge, *step, number as u8)
                .map_err(|stop| Stop::fail(format!("step {number}, {step:?}: {stop}")))?;
            if !judge.outcome.is_good() {
                return Ok(()); // what follows says nothing more
            }
        }
        judge.check()
    }
}

fn failed(mut outcome: Outcome, what: String) -> Verdict {
    outcome.failures.push(what);
    Verdict::Done(outcome)
}

/// Whether all of `area` is.
fn is_watched(judge: &Judge, area: Area) -> bool {
    let watched = judge.ranges().iter().filter_map(|range| range.intersection(area.range()));
    watched.map(libdirty::PageRange::len).sum::<usize>() == area.len()
}

/// What the program knows of its memory. Tracking may change protections behind its back, so the kernel is asked
/// what is mapped, and not what may be written.
struct Program {
    window: Area,
    access: [Access; WINDOW],
    shared: [bool; WINDOW],
}

impl Program {
    fn start(judge: &mut Judge) -> Result<Self, Stop> {
        let border = ARENA + 2 * huge_pages() * page_size();
        let window = Area { start: border - BEGINNING / 2 * page_size(), pages: WINDOW };
        let program = Program { window, access: [Access::Write; WINDOW], shared: [false; WINDOW] };
        let beginning = window.part(0, BEGINNING);
        let backing = Backing::Anonymous;
        judge.perform(Op::Map { at: beginning.start, length: beginning.len(), backing, replace: false })?;
        judge.touch(beginning, 2, 77)?;
        judge.watch(beginning)?;
        Ok(program)
    }

    fn area(&self, span: Span) -> Area {
        self.window.part(span.page, span.count)
    }

    /// The runs of mapped pages in `span` for which `want` holds.
    fn runs(&self, judge: &Judge, span: Span, want: impl Fn(usize) -> bool) -> Result<Vec<Area>, Stop> {
        let mappings = judge.memory().mappings()?;
        let mut runs: Vec<Area> = Vec::new();
        for page in span.page..span.page + span.count {
            let address = self.window.page(page);
            if !want(page) || !mappings.iter().any(|mapping| mapping.range.contains_address(address)) {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.page(last.pages) == address => last.pages += 1,
                _ => runs.push(Area { start: address, pages: 1 }),
            }
        }
        Ok(runs)
    }

    fn writable(&self, judge: &Judge, span: Span) -> Result<Vec<Area>, Stop> {
        self.runs(judge, span, |page| self.access[page] == Access::Write)
    }

    fn pages(&self, area: Area) -> std::ops::Range<usize> {
        let first = (area.start - self.window.start) / page_size();
        first..first + area.pages
    }

    fn take(&mut self, judge: &mut Judge, step: Step, number: u8) -> Result<(), Stop> {
        let value = number.wrapping_mul(2) | 1; // differs from what any step near has written
        match step {
            Step::Write(span) => {
                for run in self.writable(judge, span)? {
                    judge.touch(run, 1, value)?;
                }
            }
            Step::Straddle(page) => {
                for run in self.writable(judge, Span { page, count: 2 })? {
                    if run.pages == 2 {
                        let value = u64::from_ne_bytes([value; 8]);
                        judge.perform(Op::Straddle { at: run.page(1) - 3, value })?;
                    }
                }
            }
            Step::Read(span) => {
                for run in self.runs(judge, span, |page| self.access[page] >= Access::Read)? {
                    judge.perform(Op::Load { at: run.start, length: run.len() })?;
                }
            }
            Step::KernelWrite(span) if judge.record().kernel_writes == Sees::Yes => {
                for run in self.writable(judge, span)? {
                    let length = run.len().min(16 * page_size()); // a pipe holds that much
                    judge.perform(Op::Kernel { way: Way::Read, at: run.start, length, value })?;
                }
            }
            Step::KernelWrite(_) => {}
            Step::Discard(span) => {
                for run in self.runs(judge, span, |_| true)? {
                    let advice = libc::MADV_DONTNEED;
                    judge.perform(Op::Advise { at: run.start, length: run.len(), advice })?;
                }
            }
            Step::Unmap(span) => {
                let area = self.area(span);
                judge.perform(Op::Unmap { at: area.start, length: area.len() })?;
            }
            Step::Map(span, backing) => {
                let area = self.area(span);
                judge.perform(Op::Map { at: area.start, length: area.len(), backing, replace: true })?;
                for page in self.pages(area) {
                    self.access[page] = Access::Write;
                    self.shared[page] = backing == Backing::Shared;
                }
            }
            Step::Move(span, to) if judge.record().remapped_writes == Sees::Yes => {
                self.relocate(judge, span, to)?;
            }
            Step::Protect(span, access) if judge.record().reprotected_writes == Sees::Yes => {
                let protection = match access {
                    Access::Nothing => libc::PROT_NONE,
                    Access::Read => libc::PROT_READ,
                    Access::Write => libc::PROT_READ | libc::PROT_WRITE,
                };
                for run in self.runs(judge, span, |_| true)? {
                    judge.perform(Op::Protect { at: run.start, length: run.len(), protection })?;
                    for page in self.pages(run) {
                        self.access[page] = access;
                    }
                }
            }
            Step::Move(..) | Step::Protect(..) => {}
            Step::Fork(span) => {
                judge.perform(Op::EndFork)?;
                // Through shared memory the child would write its parent's: an alias.
                let wants = |page: usize| self.access[page] == Access::Write && !self.shared[page];
                if let Some(run) = self.runs(judge, span, wants)?.first() {
                    judge.perform(Op::Fork { at: run.start, length: run.len(), value })?;
                }
            }
            Step::EndFork => {
                judge.perform(Op::EndFork)?;
            }
            Step::Watch(span) => {
                let area = self.area(span);
                if judge.ranges().iter().all(|range| range.intersection(area.range()).is_none()) {
                    judge.watch(area)?;
                } else if judge.record().refuses_ranges && judge.watch(area).is_ok() {
                    return Err(Stop::fail("it is watched already and that was not refused"));
                }
            }
            Step::Unwatch(span) => {
                let area = self.area(span);
                if is_watched(judge, area) {
                    judge.unwatch(area)?;
                } else if judge.record().refuses_ranges && judge.unwatch(area).is_ok() {
                    return Err(Stop::fail("it is not watched as a whole and that was not refused"));
                }
            }
            Step::Collect => judge.check()?,
            Step::CollectRange(span) | Step::Peek(span) if judge.record().collects_ranges => {
                let area = self.area(span);
                if !is_watched(judge, area) {
                    if judge.collect_part_racing(area).is_ok() || judge.peek_racing(area).is_ok() {
                        return Err(Stop::fail("it is not watched as a whole and that was not refused"));
                    }
                } else if matches!(step, Step::Peek(_)) {
                    judge.peek(area)?;
                } else {
                    judge.check_part(area)?;
                }
            }
            Step::CollectRange(_) | Step::Peek(_) => {}
        }
        Ok(())
    }

    /// Move pages. Tracking may have cut the mapping in two, and older kernels move one alone: where a move
    /// fails, the program takes its hands off both places.
    fn relocate(&mut self, judge: &mut Judge, span: Span, to: usize) -> Result<(), Stop> {
        let Some(from) = self.runs(judge, span, |_| true)?.first().copied() else { return Ok(()) };
        let to = self.window.part(to, from.pages);
        if from.range().intersection(to.range()).is_some() || to.page(to.pages) > self.window.page(WINDOW) {
            return Ok(());
        }
        let op = Op::Remap { at: from.start, length: from.len(), new_length: to.len(), to: Some(to.start) };
        let is_moved = judge.workload().perform(op).is_ok();
        for (old, new) in self.pages(from).zip(self.pages(to)) {
            self.access[new] = if is_moved { self.access[old] } else { Access::Nothing };
            self.shared[new] = self.shared[old] || !is_moved;
            if !is_moved {
                self.access[old] = Access::Nothing;
            }
        }
        Ok(())
    }
}
