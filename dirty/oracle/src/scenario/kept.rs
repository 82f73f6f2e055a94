// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel does with pages by itself: it writes them back, puts them out, and merges those that are equal.
//! Each replaces or changes the entries in which a back end may keep what it knows.

use std::thread;
use std::time::{Duration, Instant};

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::writes::{advise, huge_pages};

const ROUNDS: u8 = 3;

/// Files: written back, and then out of memory: what a collect has taken must be on disk, or wherever it belongs.
pub(super) fn write_back(judge: &mut Judge) -> Result<(), Stop> {
    for backing in [Backing::SharedFile, Backing::Shared] {
        let area = judge.map(300, backing)?;
        let sync = Op::Sync { at: area.start, length: area.len() };
        judge.touch(area, 1, 77)?;
        judge.perform(sync)?;
        judge.watch(area)?;
        for round in 1..=ROUNDS {
            // Written back before it is collected, and collected before it is written back.
            judge.touch(area, 3, round)?;
            judge.perform(sync)?;
            judge.check()?;
            judge.touch(area, 2, round + 50)?;
            judge.check()?;
            judge.perform(sync)?;
            judge.check()?;
            judge.touch(area, 5, round + 100)?;
            judge.check()?;
            advise(judge, area, libc::MADV_PAGEOUT)?;
            judge.check()?;
            judge.expect(area, 5, round + 100)?;
            judge.touch(area, 7, round + 150)?;
            advise(judge, area, libc::MADV_PAGEOUT)?;
            judge.perform(Op::Load { at: area.start, length: area.len() })?;
            judge.check()?;
        }
    }
    Ok(())
}

/// Equal pages become one, which each write takes apart again.
pub(super) fn merged(judge: &mut Judge) -> Result<(), Stop> {
    let run = std::fs::read_to_string("/sys/kernel/mm/ksm/run").unwrap_or_default();
    if run.trim() != "1" {
        return Err(Stop::skip("the kernel merges no pages (/sys/kernel/mm/ksm/run)"));
    }
    let area = judge.map(64, Backing::Anonymous)?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    advise(judge, area, libc::MADV_MERGEABLE)?;
    for round in 1..=ROUNDS {
        // Written, and merged before the collect.
        judge.perform(Op::Fill { at: area.start, length: area.len(), value: round })?;
        wait_until_merged(judge, area)?;
        judge.check()?;
        judge.touch(area, 3, round + 50)?;
        judge.check()?;
        judge.perform(Op::Fill { at: area.start, length: area.len(), value: round + 100 })?;
        judge.check()?;
        wait_until_merged(judge, area)?;
        judge.check()?;
        judge.touch(area, 2, round + 150)?;
        judge.check()?;
    }
    Ok(())
}

fn wait_until_merged(judge: &Judge, area: Area) -> Result<(), Stop> {
    let since = Instant::now();
    loop {
        let frames = judge.memory().frames(area.range());
        let (frames, pages) = frames.map_err(|error| Stop::skip(format!("page frames: {error}")))?;
        if frames <= pages / 4 {
            return Ok(());
        }
        if since.elapsed() > Duration::from_secs(20) {
            return Err(Stop::skip(format!("{pages} equal pages are still in {frames} frames")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Huge pages set aside.
pub(super) fn hugetlb(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.place(4 * huge_pages());
    let op = Op::Map { at: area.start, length: area.len(), backing: Backing::Huge, replace: false };
    if let Err(error) = judge.workload().perform(op) {
        return Err(Stop::skip(format!("no four huge pages set aside (vm.nr_hugepages): {error}")));
    }
    judge.touch(area.part(0, 2 * huge_pages()), 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(area.part(7, 1), 1, round)?;
        judge.check()?;
        judge.check()?;
        judge.perform(Op::Straddle { at: area.page(huge_pages()) - 3, value: u64::from(round) << 32 })?;
        judge.check()?;
        judge.touch(area, 9, round + 50)?;
        judge.check()?;
        if judge.record().collects_ranges {
            // A huge page has one mark: what is found of its other pages is for who collects them.
            judge.touch(area, 11, round + 70)?;
            judge.check_part(area.part(huge_pages() - 20, 50))?;
            judge.check_part(area.part(3, 2 * huge_pages() + 9))?;
            judge.check()?;
        }
        let part = area.part(huge_pages(), huge_pages());
        // Linux 5.18 has it.
        let discard = Op::Advise { at: part.start, length: part.len(), advice: libc::MADV_DONTNEED };
        if judge.workload().perform(discard).is_ok() {
            judge.check()?;
            judge.touch(part, 5, round + 100)?;
            judge.check()?;
        }
    }
    Ok(())
}
