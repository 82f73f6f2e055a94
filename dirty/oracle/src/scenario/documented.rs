// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The documented loop, as a checkpointer runs it on another process: watch everything, copy everything, then collect
//! and copy what is reported while the program goes on; at last stop it, collect, copy, and compare the image with the
//! memory.
//!
//! Unlike in the other scenarios the copies race with the program, and come *before* the next collect: what was copied
//! and is gone again must be reported though it is empty at either end.

use std::time::{Duration, Instant};

use libdirty::{PageRange, page_size};

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::writes::advise;

const THREADS: usize = 2;
const PAGES: usize = 4096;
/// Images, however little time there is.
const IMAGES: usize = 4;
/// Collects to an image.
const COLLECTS: usize = 12;
/// Ranges that are collected one by one, at most.
const SLICES: usize = 10;

pub(super) fn discards(judge: &mut Judge) -> Result<(), Stop> {
    images(
        judge,
        |judge, collect| {
            std::thread::sleep(Duration::from_micros((700 * collect) as u64));
            judge.collect_racing()?;
            judge.copy()
        },
        Judge::check,
    )
}

/// The same with ranges that are collected alone; the last collect is of each.
pub(super) fn ranges(judge: &mut Judge) -> Result<(), Stop> {
    if !judge.record().collects_ranges {
        return Err(Stop::skip("it cannot collect a range alone"));
    }
    images(
        judge,
        |judge, collect| {
            let slices = slices(judge)?;
            for (number, slice) in slices.iter().enumerate() {
                std::thread::sleep(Duration::from_micros((100 * collect) as u64));
                if (number + collect) % 3 > 0 {
                    judge.collect_part_racing(*slice)?;
                    judge.copy()?;
                }
            }
            Ok(())
        },
        |judge| slices(judge)?.into_iter().rev().try_for_each(|slice| judge.check_part(slice).map(|_| ())),
    )
}

/// Everything, cut in the midst of what is mapped.
fn slices(judge: &mut Judge) -> Result<Vec<Area>, Stop> {
    let all = everything();
    let mappings = judge.memory().mappings()?;
    let large: Vec<_> = mappings.iter().filter(|mapping| mapping.range.pages() > 8).collect();
    let some = large.iter().step_by(large.len().div_ceil(SLICES).max(1));
    let middles = some.map(|mapping| mapping.range.start() + mapping.range.pages() / 3 * page_size());
    let mut cuts: Vec<_> = [all.start, all.page(all.pages)].into_iter().chain(middles).collect();
    cuts.sort_unstable();
    cuts.retain(|cut| (all.start..=all.page(all.pages)).contains(cut));
    cuts.dedup();
    let slice = |cut: &[usize]| Area { start: cut[0], pages: (cut[1] - cut[0]) / page_size() };
    Ok(cuts.windows(2).map(slice).collect())
}

fn everything() -> Area {
    let everything = PageRange::everything();
    Area { start: everything.start(), pages: everything.len() / page_size() }
}

/// Image after image: `proceed` while the program goes on, `end` when it is stopped.
fn images(
    judge: &mut Judge,
    mut proceed: impl FnMut(&mut Judge, usize) -> Result<(), Stop>,
    mut end: impl FnMut(&mut Judge) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let area = judge.map(PAGES, Backing::Anonymous)?;
    advise(judge, area.part(PAGES / 2, PAGES / 2), libc::MADV_NOHUGEPAGE)?;
    judge.perform(Op::StartChurn { threads: THREADS, at: area.start, length: area.len() })?;
    let all = everything();
    let (mut images, since) = (0, Instant::now());
    while images < IMAGES || since.elapsed() < Duration::from_secs_f64(judge.setup.seconds) {
        judge.watch(all)?;
        for collect in 0..images % COLLECTS {
            proceed(judge, collect)?;
        }
        judge.stopped(&mut end)?;
        images += 1;
        if !judge.outcome.is_good() {
            break; // more images say nothing new
        }
        judge.unwatch(all)?;
    }
    judge.outcome.notes.push(format!("{images} images"));
    judge.perform(Op::StopChurn)?;
    Ok(())
}
