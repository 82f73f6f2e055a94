// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that write while the tracker works.
//!
//! A write is lost between two instants, if a page is first written there, and shows as long as nobody writes the
//! page again. So collects follow each other closely, the threads are held still right after, and the memory is
//! compared then and not just at the end.

use std::thread;
use std::time::{Duration, Instant};

use crate::judge::Judge;
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::writes::advise;

pub(super) const THREADS: usize = 4;
pub(super) const PAGES: usize = 2048;
/// Collects between two checks, close together.
const BURST: usize = 4;
/// Pages that a processor keeps all at hand in its TLB. A back end that changes entries and does not flush misses each
/// write to them until something else flushes; among many pages the entries are driven out soon.
const FEW_PAGES: usize = 16;
const FEW_ROUNDS: usize = 12;
/// Rounds at least, however little time there is: some seventy collects.
const ROUNDS: usize = 12;

/// Whether to go on after `round` rounds.
pub(super) fn goes_on(judge: &Judge, round: usize, since: Instant) -> bool {
    // Once pages were missed, more rounds say nothing new.
    let is_good = judge.outcome.is_good();
    is_good && (round < ROUNDS || since.elapsed() < Duration::from_secs_f64(judge.setup.seconds))
}

/// Collects close together, each with a moment before it that lets some pages be written, but not all.
fn burst(judge: &mut Judge, round: usize) -> Result<(), Stop> {
    for number in 0..BURST {
        thread::sleep(Duration::from_micros((20 * (round + number) % 200) as u64));
        judge.collect_racing()?;
    }
    Ok(())
}

pub(super) fn writers(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(PAGES, Backing::Anonymous)?;
    // In small pages each write counts, in huge ones a second write hides that the first was lost.
    advise(judge, area.part(PAGES / 4, 3 * PAGES / 4), libc::MADV_NOHUGEPAGE)?;
    judge.touch(area.part(0, PAGES / 2), 1, 77)?;
    judge.watch(area)?;
    judge.perform(Op::StartWriters { threads: THREADS, at: area.start, length: area.len() })?;
    let (mut round, since) = (0, Instant::now());
    while goes_on(judge, round, since) {
        race(judge, round)?;
        round += 1;
    }
    judge.perform(Op::StopWriters)?;
    judge.check()
}

/// One round, in which the writers run and are held still twice.
fn race(judge: &mut Judge, round: usize) -> Result<(), Stop> {
    judge.collect_racing()?;
    judge.copy()?; // under fire, too
    burst(judge, round)?;
    // On a slow machine every page is dirty by now, and no write is the first: begin once with none.
    judge.perform(Op::PauseWriters)?;
    judge.check()?;
    judge.perform(Op::ResumeWriters)?;
    judge.collect_racing()?;
    judge.perform(Op::PauseWriters)?;
    judge.check()?;
    judge.perform(Op::ResumeWriters).map(|_| ())
}

pub(super) fn few_pages(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(FEW_PAGES, Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    judge.perform(Op::StartWriters { threads: 2, at: area.start, length: area.len() })?;
    for _ in 0..FEW_ROUNDS {
        // Copied at once: what is copied when the writers hold still hides what was lost before.
        for _ in 0..BURST {
            judge.collect_racing()?;
            judge.copy()?;
        }
        judge.perform(Op::PauseWriters)?;
        judge.check()?;
        judge.perform(Op::ResumeWriters)?;
    }
    judge.perform(Op::StopWriters)?;
    judge.check()
}

pub(super) fn watch(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(PAGES, Backing::Anonymous)?;
    judge.touch(area, 2, 77)?;
    judge.watch(area.part(0, PAGES / 4))?;
    judge.perform(Op::StartWriters { threads: THREADS, at: area.start, length: area.len() })?;
    let (mut round, since) = (0, Instant::now());
    while goes_on(judge, round, since) {
        let moving = area.part(PAGES / 4 + round % 64, PAGES / 2);
        judge.watch(moving)?;
        judge.collect_racing()?;
        judge.copy()?;
        // Cut a hole, so that what is left are two ranges of one.
        let hole = moving.part(100, 50);
        judge.unwatch(hole)?;
        burst(judge, round)?;
        judge.perform(Op::PauseWriters)?;
        judge.check()?;
        judge.perform(Op::ResumeWriters)?;
        judge.watch(hole)?;
        judge.collect_racing()?;
        judge.unwatch(moving)?;
        round += 1;
    }
    judge.perform(Op::StopWriters)?;
    judge.check()
}
