// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges that are collected alone, in any order and size, and peeks in between.
//!
//! What is collected of one range must leave what was written beside it to the collects that cover that; so most checks
//! here are of ranges alone, each held against its own collect, and not of everything at once.

use std::thread;
use std::time::{Duration, Instant};

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::threads::{PAGES, THREADS, goes_on};
use super::writes::{advise, huge_pages};

const ROUNDS: u8 = 3;
/// Ranges that are collected between two checks.
const BURST: usize = 5;

fn check_can(judge: &Judge) -> Result<(), Stop> {
    if judge.record().collects_ranges { Ok(()) } else { Err(Stop::skip("it cannot collect a range alone")) }
}

/// Some range of `area`: a page, a few, across the border of page tables, nearly all; another for each `number`.
fn some(area: Area, number: usize) -> Area {
    let sizes = [1, 3, 64, huge_pages() / 2 + 7, huge_pages(), area.pages * 3 / 4];
    let pages = sizes[number % sizes.len()].min(area.pages);
    area.part(number * 397 % (area.pages - pages + 1), pages)
}

/// `area` in pieces of uneven sizes; the cuts are others in each `round`.
fn pieces(area: Area, round: usize) -> Vec<Area> {
    let mut cuts = vec![0, area.pages];
    cuts.extend((0..4).map(|cut| (cut * 613 + round * 131 + 1) % area.pages));
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| area.part(cut[0], cut[1] - cut[0])).collect()
}

/// Check `area` piece by piece, from another piece on in each `round`.
fn check_pieces(judge: &mut Judge, area: Area, round: usize) -> Result<(), Stop> {
    let mut pieces = pieces(area, round);
    let first = round % pieces.len();
    pieces.rotate_left(first);
    pieces.into_iter().try_for_each(|piece| judge.check_part(piece).map(|_| ()))
}

pub(super) fn writers(judge: &mut Judge) -> Result<(), Stop> {
    check_can(judge)?;
    let area = judge.map(PAGES, Backing::Anonymous)?;
    advise(judge, area.part(PAGES / 4, 3 * PAGES / 4), libc::MADV_NOHUGEPAGE)?;
    judge.touch(area.part(0, PAGES / 2), 1, 77)?;
    judge.watch(area)?;
    once(judge, area)?;
    judge.perform(Op::StartWriters { threads: THREADS, at: area.start, length: area.len() })?;
    let (mut round, since) = (0, Instant::now());
    while goes_on(judge, round, since) {
        for number in 0..BURST {
            thread::sleep(Duration::from_micros((20 * (round + number) % 200) as u64));
            judge.collect_part_racing(some(area, round * BURST + number))?;
            if number == 2 {
                judge.copy()?; // under fire, too
            }
        }
        // On a slow machine every page is dirty by now: once more with few.
        for _ in 0..2 {
            judge.perform(Op::PauseWriters)?;
            check_pieces(judge, area, round)?;
            judge.perform(Op::ResumeWriters)?;
            judge.collect_part_racing(some(area, round))?;
        }
        round += 1;
    }
    judge.perform(Op::StopWriters)?;
    check_pieces(judge, area, round)?;
    judge.check()
}

/// What one collect of a range has reported the next does not, and what is beside it is still reported.
fn once(judge: &mut Judge, area: Area) -> Result<(), Stop> {
    judge.check()?;
    let (part, beside) = (area.part(PAGES / 2, 100), area.part(PAGES / 2 + 100, 100));
    for round in 1..=ROUNDS {
        judge.touch(area.part(PAGES / 2, 200), 2, round)?;
        let found = judge.check_part(part)?;
        let again = judge.check_part(part)?;
        let rest = judge.check_part(beside)?;
        if judge.record().exact && (found, again, rest) != (50, 0, 50) {
            let what = format!("instead of 50, 0 and 50 pages: {found}, {again} and {rest}");
            judge.outcome.fail(what);
        }
        judge.check()?;
    }
    Ok(())
}

/// Memory of each kind comes and goes while ranges of it are collected.
pub(super) fn discards(judge: &mut Judge) -> Result<(), Stop> {
    check_can(judge)?;
    let size = 2 * huge_pages();
    for backing in [Backing::Anonymous, Backing::Shared, Backing::PrivateFile] {
        let area = judge.map(size, backing)?;
        advise(judge, area, libc::MADV_NOHUGEPAGE)?;
        judge.touch(area, 3, 77)?;
        judge.watch(area)?;
        for round in 1..=ROUNDS {
            let number = usize::from(round);
            let part = area.part(huge_pages() - 40 * number, 60 * number);
            judge.touch(area, 1, round)?;
            judge.check_part(some(area, number))?;
            advise(judge, part, libc::MADV_DONTNEED)?;
            // Empty where it is collected, empty where it is not; written, and given back again.
            judge.check_part(area.part(huge_pages() - 10, 30))?;
            judge.touch(part, 2, round + 50)?;
            advise(judge, part.part(0, 20), libc::MADV_DONTNEED)?;
            check_pieces(judge, area, number)?;
            // Pages that are found for nobody, and then change before somebody asks.
            judge.touch(area, 5, round + 100)?;
            judge.peek(area)?;
            advise(judge, area.part(100, 50), libc::MADV_DONTNEED)?;
            judge.check_part(area.part(0, 10))?;
            judge.touch(area.part(120, 100), 2, round + 150)?;
            judge.perform(Op::Unmap { at: area.page(size - 64), length: area.part(0, 64).len() })?;
            judge.peek(area)?;
            judge.check_part(area.part(0, size - 32))?;
            let back = area.part(size - 64, 64);
            judge.perform(Op::Map { at: back.start, length: back.len(), backing, replace: true })?;
            judge.touch(back, 2, round + 200)?;
            judge.check_part(area.part(size - 40, 40))?;
            check_pieces(judge, area, number + 1)?;
        }
        judge.check()?;
    }
    Ok(())
}

pub(super) fn peek(judge: &mut Judge) -> Result<(), Stop> {
    check_can(judge)?;
    let area = judge.map(PAGES, Backing::Anonymous)?;
    advise(judge, area.part(PAGES / 4, 3 * PAGES / 4), libc::MADV_NOHUGEPAGE)?;
    judge.touch(area.part(0, PAGES / 2), 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(area, 3, round)?;
        advise(judge, area.part(60, 300), libc::MADV_DONTNEED)?;
        // Asked twice it says the same twice, and a collect says it once more.
        judge.peek(area)?;
        judge.peek(some(area, usize::from(round)))?;
        judge.peek(area)?;
        if round % 2 == 0 { judge.check()? } else { check_pieces(judge, area, usize::from(round))? }
    }
    judge.perform(Op::StartWriters { threads: THREADS, at: area.start, length: area.len() })?;
    let (mut round, since) = (0, Instant::now());
    while goes_on(judge, round, since) {
        for number in 0..BURST {
            thread::sleep(Duration::from_micros((20 * (round + number) % 200) as u64));
            judge.peek_racing(some(area, round * BURST + number))?;
        }
        judge.perform(Op::PauseWriters)?;
        judge.peek(area)?;
        if round % 2 == 0 {
            judge.check()?
        } else {
            check_pieces(judge, area, round)?
        }
        judge.perform(Op::ResumeWriters)?;
        round += 1;
    }
    judge.perform(Op::StopWriters)?;
    judge.peek(area)?;
    judge.check()
}
