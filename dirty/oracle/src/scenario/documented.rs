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

pub(super) fn discards(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(PAGES, Backing::Anonymous)?;
    advise(judge, area.part(PAGES / 2, PAGES / 2), libc::MADV_NOHUGEPAGE)?;
    judge.perform(Op::StartChurn { threads: THREADS, at: area.start, length: area.len() })?;
    let everything = PageRange::everything();
    let all = Area { start: everything.start(), pages: everything.len() / page_size() };
    let (mut images, since) = (0, Instant::now());
    while images < IMAGES || since.elapsed() < Duration::from_secs_f64(judge.setup.seconds) {
        judge.watch(all)?;
        for collect in 0..images % COLLECTS {
            std::thread::sleep(Duration::from_micros((700 * collect) as u64));
            judge.collect_racing()?;
            judge.copy()?;
        }
        judge.stopped(Judge::check)?;
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
