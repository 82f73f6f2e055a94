// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Content that goes away, for good or for a while, without a store.

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::writes::{advise, check_huge, huge_pages};

const ROUNDS: u8 = 3;

/// Discard `part`, read it, write it, checking each time; without the reads in every other round.
fn discard(judge: &mut Judge, area: Area, part: Area) -> Result<(), Stop> {
    for round in 1..=ROUNDS {
        judge.touch(area, 1, round)?;
        judge.check()?;
        advise(judge, part, libc::MADV_DONTNEED)?;
        judge.check()?;
        if round % 2 == 1 {
            judge.perform(Op::Load { at: part.start, length: part.len() })?;
            judge.check()?;
        }
        judge.touch(part, 2, round + 100)?;
        judge.check()?;
        // Discarded and written again within one round: what is not written is zero.
        judge.touch(part, 1, round + 150)?;
        judge.check()?;
        advise(judge, part, libc::MADV_DONTNEED)?;
        judge.touch(part, 3, round + 200)?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn some(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(400, Backing::Anonymous)?;
    // The last hundred pages never hold anything.
    let used = area.part(0, 300);
    judge.touch(used, 1, 77)?;
    judge.watch(area)?;
    discard(judge, used, area.part(50, 100))
}

pub(super) fn block(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(3 * huge_pages(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    discard(judge, area, area.part(huge_pages(), huge_pages()))?;
    discard(judge, area, area.part(huge_pages() - 1, huge_pages() + 2))?;
    // A block that holds one page alone.
    for round in 1..=ROUNDS {
        advise(judge, area, libc::MADV_DONTNEED)?;
        judge.touch(area.part(huge_pages() + 9, 1), 1, round + 50)?;
        judge.check()?;
        advise(judge, area.part(huge_pages(), huge_pages()), libc::MADV_DONTNEED)?;
        judge.check()?;
    }
    Ok(())
}

/// Reported and empty; written, and only then copied; given back before the next collect. At either collect the pages
/// are empty, and yet the copy has what was in between. Pages that a copier leaves out hide nothing.
pub(super) fn copied(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(3 * huge_pages(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    judge.check()?;
    for round in 1..=ROUNDS {
        // A few pages, and all of a page table.
        for part in [area.part(9, 60), area.part(huge_pages(), huge_pages())] {
            judge.touch(part, 1, round)?;
            advise(judge, part, libc::MADV_DONTNEED)?;
            judge.collect_racing()?;
            judge.touch(part, 1, round + 50)?;
            judge.copy()?;
            advise(judge, part, libc::MADV_DONTNEED)?;
            judge.check()?;
            judge.touch(part, 2, round + 100)?;
            judge.check()?;
        }
    }
    Ok(())
}

/// Huge pages are taken apart and put together under watch: by a discard of a part, by a change of protection, by
/// `MADV_COLLAPSE` (Linux 6.1).
pub(super) fn split(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(4 * huge_pages(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_HUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    check_huge(judge, area, "under watch")?;
    let mut collapsed = 0;
    for round in 1..=ROUNDS {
        judge.touch(area, 3, round)?;
        let part = area.part(huge_pages() + 20, 100);
        advise(judge, part, libc::MADV_DONTNEED)?;
        judge.check()?;
        judge.touch(area, 5, round + 50)?;
        let part = area.part(2 * huge_pages() + 10, 40);
        for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            judge.perform(Op::Protect { at: part.start, length: part.len(), protection })?;
        }
        judge.check()?;
        // Written, and put together before the collect; then the other way round.
        for (step, value) in [(7, round + 100), (2, round + 150)] {
            judge.touch(area, step, value)?;
            let collapse = Op::Advise { at: area.start, length: area.len(), advice: libc::MADV_COLLAPSE };
            collapsed += usize::from(judge.workload().perform(collapse).is_ok());
            judge.check()?;
            judge.touch(area, step + 2, value + 10)?;
            judge.check()?;
        }
    }
    judge.outcome.notes.push(format!("put together {collapsed} times"));
    Ok(())
}

pub(super) fn huge(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(3 * huge_pages(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_HUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    check_huge(judge, area, "under watch")?;
    // The huge page as it is, before anything splits it.
    advise(judge, area.part(huge_pages(), huge_pages()), libc::MADV_DONTNEED)?;
    judge.check()?;
    discard(judge, area, area.part(huge_pages(), huge_pages()))
}

pub(super) fn free(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(600, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(area, 1, round)?;
        judge.check()?;
        let part = area.part(10, 500);
        advise(judge, part, libc::MADV_FREE)?;
        judge.check()?;
        judge.touch(area.part(100, 200), 2, round + 100)?;
        judge.check()?;
        // Reclaim takes what was freed and not written since; it is zero from then on.
        advise(judge, part, libc::MADV_FREE)?;
        advise(judge, part, libc::MADV_PAGEOUT)?;
        judge.check()?;
        judge.perform(Op::Load { at: part.start, length: part.len() })?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn swap(judge: &mut Judge) -> Result<(), Stop> {
    let swaps = std::fs::read_to_string("/proc/swaps")?;
    if swaps.lines().count() < 2 {
        return Err(Stop::skip("no swap is on"));
    }
    let area = judge.map(1024, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    let mut swapped = 0;
    for round in 1..=ROUNDS {
        advise(judge, area, libc::MADV_PAGEOUT)?;
        swapped = swapped.max(judge.memory().swapped_pages(area.range())?);
        judge.check()?;
        judge.touch(area, 3, round)?;
        // Out again before the collect: the written pages must be reported nevertheless.
        advise(judge, area, libc::MADV_PAGEOUT)?;
        judge.check()?;
        judge.perform(Op::Load { at: area.start, length: area.len() })?;
        judge.check()?;
        judge.touch(area, 5, round + 100)?;
        judge.check()?;
        // Taken by the tracker, and still to be kept.
        advise(judge, area, libc::MADV_PAGEOUT)?;
        judge.expect(area, 5, round + 100)?;
        judge.check()?;
    }
    if swapped == 0 {
        return Err(Stop::skip("MADV_PAGEOUT put nothing into swap"));
    }
    judge.outcome.notes.push(format!("up to {swapped} pages in swap"));
    Ok(())
}
