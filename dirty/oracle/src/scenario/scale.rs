// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Much address space, many dirty runs, many ranges.

use libdirty::page_size;

use crate::judge::Judge;
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::writes::{advise, huge_pages};

/// 10 GiB; of larger pages these are fewer page tables.
const SPARSE: usize = 10 << 30;

pub(super) fn sparse(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(SPARSE / page_size(), Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    // A page in every other page table.
    let step = 2 * huge_pages();
    judge.touch(area, 2 * step, 77)?;
    judge.watch(area)?;
    for round in 1..=3 {
        judge.touch(area, step, round)?;
        judge.check()?;
    }
    Ok(())
}

/// More runs than the buffer of any back end holds at once: the module's has 65,536.
pub(super) fn alternate(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(140_000, Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area, 2, 77)?;
    judge.watch(area)?;
    for round in 1..=2 {
        judge.touch(area, 2, round)?;
        judge.check()?;
    }
    Ok(())
}

/// Mappings that the kernel cannot join, for every other one is of a file.
pub(super) fn mappings(judge: &mut Judge) -> Result<(), Stop> {
    const PAGES: usize = 3;
    let area = judge.place(2000 * PAGES);
    let map = |judge: &mut Judge, index: usize, replace| {
        let part = area.part(index * PAGES, PAGES);
        let backing = if index.is_multiple_of(2) { Backing::Anonymous } else { Backing::PrivateFile };
        judge.perform(Op::Map { at: part.start, length: part.len(), backing, replace }).map(|_| ())
    };
    // One in ten is missing at first.
    for index in (0..area.pages / PAGES).filter(|index| !index.is_multiple_of(10)) {
        map(judge, index, false)?;
        judge.touch(area.part(index * PAGES, 1), 1, 77)?;
    }
    judge.watch(area)?;
    for round in 1..=2 {
        for index in (0..area.pages / PAGES).step_by(10) {
            map(judge, index, true)?;
        }
        judge.touch(area, 2, round)?;
        judge.check()?;
        // Replaced by memory that is empty, and by some that is not.
        for index in (0..area.pages / PAGES).filter(|index| index.is_multiple_of(3)) {
            map(judge, index, true)?;
            judge.touch(area.part(index * PAGES, 1 + index % 2), 2, round + 50)?;
        }
        judge.check()?;
        judge.touch(area, 1, round + 100)?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn ranges(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(4000, Backing::Anonymous)?;
    judge.touch(area, 2, 77)?;
    let range = |index: usize| area.part(4 * index, 1 + index % 3);
    for index in 0..1000 {
        judge.watch(range(index))?;
    }
    for round in 1..=3 {
        judge.touch(area, 1, round)?;
        judge.check()?;
    }
    for index in (0..1000).step_by(2) {
        judge.unwatch(range(index))?;
    }
    for round in 1..=2 {
        judge.touch(area, 3, round + 100)?;
        judge.check()?;
    }
    Ok(())
}
