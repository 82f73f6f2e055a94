// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fork, exec and exit.

use libdirty::Reason;

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op};
use crate::outcome::Stop;
use crate::sys::wait;

const ROUNDS: u8 = 3;

pub(super) fn fork(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(700, Backing::Anonymous)?;
    judge.touch(area.part(0, 500), 1, 77)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        // Pages written before and after the fork, by the parent, by the child, by both, by none.
        judge.touch(area, 5, round)?;
        let child = area.part(200, 300);
        judge.perform(Op::Fork { at: child.start, length: child.len(), value: round })?;
        judge.touch(area, 3, round + 50)?;
        judge.check()?;
        judge.touch(area, 2, round + 100)?;
        judge.check()?;
        judge.perform(Op::EndFork)?;
        judge.touch(area, 7, round + 150)?;
        judge.check()?;
    }
    Ok(())
}

/// Parent and child are both tracked, each by itself.
pub(super) fn fork_tracker(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(300, Backing::Anonymous)?;
    judge.touch(area.part(0, 200), 1, 77)?;
    judge.watch(area)?;
    judge.touch(area, 3, 1)?;
    // SAFETY: the child leaves by `_exit` and touches nothing of the parent's but memory.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match judge.check_forked() {
            Ok(()) => in_child(judge, area).map_or(2, |good| i32::from(!good)),
            Err(_) => 3,
        };
        // SAFETY: ends this process and nothing else.
        unsafe { libc::_exit(code) };
    }
    if pid < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    for round in 1..=ROUNDS {
        judge.touch(area, 4, round + 100)?;
        judge.check()?;
    }
    let status = wait(pid)?;
    judge.touch(area, 2, 200)?;
    judge.check()?;
    if status != 0 {
        let what = match libc::WEXITSTATUS(status) {
            _ if libc::WIFSIGNALED(status) => format!("died of signal {}", libc::WTERMSIG(status)),
            1 => "missed pages".into(),
            2 => "could not track itself".into(),
            _ => "could use the tracker of its parent".into(),
        };
        return Err(Stop::fail(format!("the forked child {what}")));
    }
    Ok(())
}

fn in_child(parent: &Judge, area: Area) -> Result<bool, Stop> {
    let mut judge = Judge::new(parent.setup.clone())?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(area, 2, round + 50)?;
        judge.check()?;
    }
    Ok(judge.finish()?.is_good())
}

pub(super) fn exec(judge: &mut Judge) -> Result<(), Stop> {
    let area = track(judge)?;
    judge.touch(area, 3, 200)?;
    judge.perform(Op::Exec)?;
    judge.check_ended(Reason::Exec)
}

pub(super) fn exit(judge: &mut Judge) -> Result<(), Stop> {
    let area = track(judge)?;
    judge.touch(area, 3, 200)?;
    if let crate::workload::Workload::Other(channel) = judge.workload() {
        channel.end()?;
    }
    judge.check_ended(Reason::Exited)?;
    // What is left for the closing check to talk to.
    *judge.workload() = crate::workload::Workload::start(judge.setup.target)?;
    Ok(())
}

fn track(judge: &mut Judge) -> Result<Area, Stop> {
    let area = judge.map(100, Backing::Anonymous)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.touch(area, 3, round)?;
        judge.check()?;
    }
    Ok(area)
}
