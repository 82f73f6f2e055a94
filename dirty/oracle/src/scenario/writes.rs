// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plain stores into memory of each kind.

use libdirty::page_size;

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;

const ROUNDS: u8 = 4;

/// Rounds of stores, and one without any.
fn rounds(judge: &mut Judge, area: Area) -> Result<(), Stop> {
    for round in 1..=ROUNDS {
        judge.touch(area, 3, round)?;
        let half = area.part(area.pages / 2, area.pages / 4);
        judge.perform(Op::Fill { at: half.start + 5, length: half.len(), value: 100 + round })?;
        judge.check()?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn one_writer(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(1500, Backing::Anonymous)?;
    judge.touch(area.part(0, 700), 2, 77)?;
    judge.watch(area)?;
    rounds(judge, area)
}

pub(super) fn straddle(judge: &mut Judge) -> Result<(), Stop> {
    // A page table's pages, as many as a huge page has. Their border is in the middle, for the arena begins with one.
    let table = huge_pages();
    let area = judge.map(2 * table, Backing::Anonymous)?;
    judge.touch(area.part(table / 2, table), 1, 77)?;
    judge.watch(area)?;
    for round in 1..=u64::from(ROUNDS) {
        for (page, before) in [(1, 1), (table - 212, 4), (table - 210, 7), (table, 3), (table + 88, 6)] {
            let value = 0x0101_0101_0101_0101 * round;
            judge.perform(Op::Straddle { at: area.page(page) - before, value })?;
        }
        judge.check()?;
    }
    Ok(())
}

pub(super) fn huge(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(4 * huge_pages(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_HUGEPAGE)?;
    judge.touch(area.part(0, 3 * huge_pages()), 1, 77)?;
    check_huge(judge, area, "before the watch")?;
    judge.watch(area)?;
    check_huge(judge, area, "under watch")?;
    rounds(judge, area)?;
    // One byte of a huge page, then all of another.
    for round in 1..=ROUNDS {
        judge.touch(area.part(7, 1), 1, 200 + round)?;
        judge.check()?;
        judge.touch(area.part(huge_pages(), huge_pages()), 1, 200 + round)?;
        judge.check()?;
    }
    Ok(())
}

/// Memory in runs of 64 KiB, which the kernel may hold as one (Linux 6.8, multi-size huge pages).
pub(super) fn runs(judge: &mut Judge) -> Result<(), Stop> {
    const RUN: usize = 64 << 10;
    let setting = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    let enabled = std::fs::read_to_string(setting).unwrap_or_else(|_| "not known to this kernel".into());
    judge.outcome.notes.push(format!("huge pages of 64 KiB: {}", enabled.trim()));
    let pages = RUN / page_size();
    let area = judge.map(40 * pages, Backing::Anonymous)?;
    advise(judge, area, libc::MADV_HUGEPAGE)?;
    judge.touch(area.part(0, 30 * pages), pages, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        // All of a run, a page of a run, the border of two; then one is given back and half written again.
        judge.perform(Op::Fill { at: area.page(3 * pages), length: RUN, value: round })?;
        judge.touch(area.part(pages / 2, 39 * pages), 2 * pages, round + 50)?;
        judge.perform(Op::Straddle { at: area.page(20 * pages) - 3, value: u64::from(round) << 32 })?;
        judge.check()?;
        let part = area.part(8 * pages, 2 * pages);
        advise(judge, part, libc::MADV_DONTNEED)?;
        judge.touch(area.part(9 * pages - pages / 2, pages), 1, round + 100)?;
        judge.check()?;
        advise(judge, area.part(12 * pages + 1, pages), libc::MADV_DONTNEED)?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn not_huge(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(4 * huge_pages(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area.part(0, 3 * huge_pages()), 1, 77)?;
    judge.watch(area)?;
    rounds(judge, area)
}

pub(super) fn shared_memory(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(1200, Backing::Shared)?;
    judge.touch(area.part(0, 600), 1, 77)?;
    judge.watch(area)?;
    rounds(judge, area)
}

pub(super) fn private_file(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(1200, Backing::PrivateFile)?;
    judge.touch(area.part(0, 300), 2, 77)?;
    judge.watch(area)?;
    rounds(judge, area)
}

pub(super) fn shared_alias(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(64, Backing::Shared)?;
    let alias = judge.place(64);
    judge.perform(Op::Alias { of: area.start, at: alias.start, length: alias.len() })?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(alias, 3, round)?;
        judge.check()?;
    }
    Ok(())
}

/// Pages of a huge page, which is what one page table maps.
pub(crate) fn huge_pages() -> usize {
    page_size() / size_of::<u64>()
}

pub(super) fn advise(judge: &mut Judge, area: Area, advice: i32) -> Result<(), Stop> {
    judge.perform(Op::Advise { at: area.start, length: area.len(), advice }).map(|_| ())
}

/// Note whether the memory really is in huge pages.
pub(super) fn check_huge(judge: &mut Judge, area: Area, when: &str) -> Result<(), Stop> {
    let kib = judge.memory().huge_kib(area.range())?;
    judge.outcome.notes.push(format!("{kib} KiB in huge pages {when}"));
    Ok(())
}
