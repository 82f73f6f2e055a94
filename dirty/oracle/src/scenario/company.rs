// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Others: trackers of the same process, and processes with other memory at the same addresses.

use std::thread;
use std::time::Duration;

use crate::judge::Judge;
use crate::op::{Backing, Op};
use crate::outcome::Stop;

use super::writes::advise;

const ROUNDS: u8 = 4;

/// What one tracker takes is not taken from another, however seldom that asks.
pub(super) fn trackers(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(600, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    let mut second = judge.beside()?;
    second.watch(area.part(200, 400))?;
    let mut third = judge.beside()?;
    third.watch(area.part(100, 50))?;
    third.watch(area.part(300, 200))?;
    for round in 1..=ROUNDS {
        judge.touch(area, 3, round)?;
        judge.check()?;
        judge.touch(area.part(250, 100), 5, round + 50)?;
        judge.check()?;
        second.check()?;
        judge.touch(area, 7, round + 100)?;
        second.check()?;
        judge.check()?;
        if round % 2 == 0 {
            third.check()?;
        }
        // Watched anew by one, which says nothing to the others.
        judge.touch(area.part(200, 300), 2, round + 150)?;
        second.unwatch(area.part(220, 100))?;
        second.watch(area.part(220, 100))?;
        judge.check()?;
        second.check()?;
    }
    judge.touch(area, 4, 201)?;
    judge.join(second);
    third.check()?;
    judge.check()?;
    judge.touch(area, 1, 202)?;
    judge.join(third);
    judge.check()?;
    judge.touch(area, 1, 203)?;
    judge.check()
}

/// What other processes write at these addresses is not reported.
pub(super) fn noise(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.place(512);
    // First: a process that is forked later would share the memory.
    judge.perform(Op::StartNoise { processes: 3, at: area.start, length: area.len() })?;
    let backing = Backing::Anonymous;
    judge.perform(Op::Map { at: area.start, length: area.len(), backing, replace: false })?;
    advise(judge, area, libc::MADV_NOHUGEPAGE)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(area, 5, round)?;
        judge.check()?;
        thread::sleep(Duration::from_millis(5)); // only the others write
        judge.check()?;
    }
    judge.perform(Op::StopNoise)?;
    judge.check()?;
    let foreign = judge.outcome.spurious;
    if judge.record().exact && foreign > 0 {
        judge.outcome.failures.push(format!("{foreign} pages were reported that this process did not write"));
    }
    Ok(())
}
