// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mappings that come, go, move, grow and change their protection.

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;

const ROUNDS: u8 = 3;

pub(super) fn munmap(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(1200, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        for part in [area.part(10, 20), area.part(500, 600)] {
            // Seen unmapped, then mapped, then written.
            unmap(judge, part)?;
            judge.check()?;
            map(judge, part, Backing::Anonymous, false)?;
            judge.check()?;
            judge.touch(part, 2, round)?;
            judge.check()?;
            // All of it between two collects; once with new content, once without.
            unmap(judge, part)?;
            map(judge, part, Backing::Anonymous, false)?;
            judge.touch(part, 3, round + 100)?;
            judge.check()?;
            unmap(judge, part)?;
            map(judge, part, Backing::Anonymous, false)?;
            judge.check()?;
            judge.touch(area, 1, round + 150)?;
            judge.check()?;
        }
    }
    unmap(judge, area)?;
    judge.check()
}

pub(super) fn map_over(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(1200, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        for backing in [Backing::Anonymous, Backing::Shared, Backing::PrivateFile, Backing::Anonymous] {
            for part in [area.part(30, 7), area.part(400, 700)] {
                map(judge, part, backing, true)?;
                judge.check()?;
                judge.touch(area, 3, round)?;
                judge.check()?;
                map(judge, part, backing, true)?;
                judge.touch(part, 5, round + 100)?;
                judge.check()?;
                judge.touch(area, 3, round + 200)?;
                judge.check()?;
            }
        }
    }
    Ok(())
}

pub(super) fn mremap(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(300, Backing::Anonymous)?;
    let outside = judge.map(300, Backing::Anonymous)?;
    for page in 0..area.pages {
        judge.touch(area.part(page, 1), 1, page as u8)?;
        judge.touch(outside.part(page, 1), 1, !page as u8)?;
    }
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        // Each from within one mapping: older kernels move no more.
        let steps = [
            ("within", area.part(200, 20), area.part(100, 20)),
            ("out of", area.part(130, 40), outside.part(110, 40)),
            ("into", outside.part(50, 40), area.part(130, 40)),
            ("back into", outside.part(110, 20), area.part(200, 20)),
        ];
        for (what, from, to) in steps {
            remap(judge, from, to).map_err(|stop| Stop::fail(format!("moving {what}: {stop}")))?;
            judge.check()?;
            judge.touch(area.part(0, 100), 3, round)?;
            if from.start < outside.start {
                judge.touch(to, 2, round + 50)?;
            }
            judge.check()?;
        }
        // Moved, and new memory put where it was, between two collects.
        let (from, to) = (area.part(120, 10), outside.part(50, 10));
        remap(judge, from, to)?;
        map(judge, from, Backing::Anonymous, false)?;
        judge.check()?;
        map(judge, outside, Backing::Anonymous, true)?;
        judge.touch(outside, 1, round + 100)?;
        judge.touch(area, 1, round + 150)?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn growth(judge: &mut Judge) -> Result<(), Stop> {
    let whole = judge.place(2000);
    // Watched further than it is mapped, as a heap is.
    let first = whole.part(0, 100);
    map(judge, first, Backing::Anonymous, false)?;
    judge.touch(first, 1, 77)?;
    judge.watch(whole.part(0, 1000))?;
    let mut mapped = first;
    for round in 1..=8 {
        let grown = whole.part(0, mapped.pages + 150);
        if round % 2 == 0 {
            map(judge, whole.part(mapped.pages, 150), Backing::Anonymous, false)?;
        } else {
            // The last pages grow: the first may be another mapping by now.
            let last = whole.part(mapped.pages - 10, 10);
            let new_length = whole.part(0, 160).len();
            judge.perform(Op::Remap { at: last.start, length: last.len(), new_length, to: None })?;
        }
        judge.touch(whole.part(mapped.pages - 1, 20), 1, round)?;
        mapped = grown;
        judge.check()?;
        judge.touch(mapped, 7, round + 100)?;
        judge.check()?;
    }
    // It has outgrown what is watched: watch the rest.
    judge.watch(whole.part(1000, 1000))?;
    for round in 1..=ROUNDS {
        judge.touch(mapped, 3, round + 150)?;
        judge.check()?;
    }
    unmap(judge, whole.part(1100, 900))?;
    judge.check()
}

pub(super) fn protection(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(600, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    for round in 1..=ROUNDS {
        let part = area.part(100, 300);
        judge.touch(area, 3, round)?;
        protect(judge, part, libc::PROT_READ)?;
        judge.touch(area.part(0, 100), 1, round + 50)?;
        judge.check()?;
        protect(judge, part, writable)?;
        judge.touch(part, 2, round + 100)?;
        judge.check()?;
        // All of it between two collects.
        protect(judge, part, libc::PROT_NONE)?;
        protect(judge, part, writable)?;
        judge.touch(part, 5, round + 150)?;
        judge.check()?;
        judge.touch(area, 1, round + 200)?;
        judge.check()?;
        protect(judge, part, libc::PROT_NONE)?;
        judge.check()?;
        protect(judge, part, writable)?;
        judge.check()?;
    }
    Ok(())
}

fn map(judge: &mut Judge, area: Area, backing: Backing, replace: bool) -> Result<(), Stop> {
    judge.perform(Op::Map { at: area.start, length: area.len(), backing, replace }).map(|_| ())
}

fn unmap(judge: &mut Judge, area: Area) -> Result<(), Stop> {
    judge.perform(Op::Unmap { at: area.start, length: area.len() }).map(|_| ())
}

fn remap(judge: &mut Judge, from: Area, to: Area) -> Result<(), Stop> {
    let op = Op::Remap { at: from.start, length: from.len(), new_length: to.len(), to: Some(to.start) };
    judge.perform(op).map(|_| ())
}

fn protect(judge: &mut Judge, area: Area, protection: i32) -> Result<(), Stop> {
    judge.perform(Op::Protect { at: area.start, length: area.len(), protection }).map(|_| ())
}
