// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that no instruction of the program makes. What a record says of them is held against what happens: seen
//! means written and reported, fails means `EFAULT` (or `EIO`, from `/proc/PID/mem`) and nothing lost.

use libdirty::{Sees, page_size};

use crate::judge::{Area, Judge};
use crate::op::{Backing, Op, Way};
use crate::outcome::Stop;
use crate::tracker::Record;
use crate::workload::{Target, Workload};

use super::writes::{advise, huge_pages};

const ROUNDS: u8 = 4;

pub(super) fn read(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::Read, |record| record.kernel_writes)
}

pub(super) fn recvmsg(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::Recvmsg, |record| record.kernel_writes)
}

pub(super) fn vmsplice(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::Vmsplice, |record| record.kernel_writes)
}

pub(super) fn io_uring(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::IoUring, |record| record.kernel_writes)
}

pub(super) fn process_vm_writev(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::ProcessVmWritev, |record| record.foreign_writes)
}

pub(super) fn proc_mem(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::ProcMem, |record| record.mem_writes)
}

pub(super) fn direct(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::Direct, |record| record.kernel_writes)
}

pub(super) fn outside_vm_writev(judge: &mut Judge) -> Result<(), Stop> {
    outside(judge, Way::ProcessVmWritev, |record| record.foreign_writes)
}

pub(super) fn outside_mem(judge: &mut Judge) -> Result<(), Stop> {
    outside(judge, Way::ProcMem, |record| record.mem_writes)
}

/// Not a child: a fork would take the write permission from every entry, and the write be a fault like another.
fn outside(judge: &mut Judge, way: Way, sees: fn(&Record) -> Sees) -> Result<(), Stop> {
    let mut other = Workload::start(Target::Other)?;
    let pid = judge.workload().pid();
    let into = |at, length, value| Op::Into { pid, way, at, length, value };
    let area = small(judge)?;
    write_to(judge, area, Some(&mut other), into, sees)?;
    let huge = judge.map(huge_pages(), Backing::Anonymous)?;
    advise(judge, huge, libc::MADV_HUGEPAGE)?;
    judge.touch(huge, 1, 77)?;
    judge.watch(huge)?;
    write_to(judge, huge, Some(&mut other), into, sees)
}

fn write(judge: &mut Judge, way: Way, sees: fn(&Record) -> Sees) -> Result<(), Stop> {
    let area = small(judge)?;
    write_to(judge, area, None, |at, length, value| Op::Kernel { way, at, length, value }, sees)
}

/// First the machine is younger than the tracker and what it watches; then it had mapped the memory before.
pub(super) fn guest(judge: &mut Judge) -> Result<(), Stop> {
    let op = |at, length, value| Op::Guest { at, length, value };
    let sees = |record: &Record| record.kernel_writes;
    let area = small(judge)?;
    write_to(judge, area, None, op, sees)?;
    let mapped = judge.map(16, Backing::Anonymous)?;
    for first in [1, 9] {
        let op = op(mapped.page(first) + 512, 3 * page_size(), 77);
        judge.workload().perform(op).map_err(|error| Stop::fail(format!("{op:?}: {error}")))?;
    }
    judge.watch(mapped)?;
    write_to(judge, mapped, None, op, sees)
}

/// A few watched pages, of which the first have content.
fn small(judge: &mut Judge) -> Result<Area, Stop> {
    let area = judge.map(16, Backing::Anonymous)?;
    judge.touch(area.part(0, 8), 1, 77)?;
    judge.watch(area)?;
    Ok(area)
}

/// Have `op` (of address, length and value) done by the program itself or by `other`.
fn write_to(
    judge: &mut Judge,
    area: Area,
    mut other: Option<&mut Workload>,
    op: impl Fn(usize, usize, u8) -> Op,
    sees: fn(&Record) -> Sees,
) -> Result<(), Stop> {
    let mut failed = false;
    for round in 1..=ROUNDS {
        // Once to pages with content, which are armed by every back end, once to some that had none at first.
        for first in [1, 9] {
            let (at, length) = (area.page(first) + 512, 3 * page_size()); // as direct I/O wants it
            let op = op(at, length, round);
            let done = other.as_deref_mut().unwrap_or(judge.workload()).perform(op);
            let errno = done.as_ref().err().and_then(std::io::Error::raw_os_error);
            if let Some(why) = lacking(op, errno) {
                return Err(Stop::skip(why));
            }
            if sees(judge.record()) == Sees::Fails {
                failed |= matches!(errno, Some(libc::EFAULT | libc::EIO));
                if !failed {
                    return Err(Stop::fail(format!("{op:?} should fail with EFAULT or EIO: {done:?}")));
                }
                judge.check()?;
                // As a program must that knows: write to each page by itself first.
                judge.touch(area.part(first, 4), 1, 50 + round)?;
                let writer = other.as_deref_mut().unwrap_or(judge.workload());
                writer.perform(op).map_err(|error| Stop::fail(format!("{op:?}: {error}")))?;
            } else if !matches!(done, Ok(bytes) if bytes == length as i64) {
                return Err(Stop::fail(format!("{op:?} of {length} bytes: {done:?}")));
            }
            judge.check()?;
        }
    }
    Ok(())
}

/// Why it cannot be tried here, if `errno` says so.
fn lacking(op: Op, errno: Option<i32>) -> Option<&'static str> {
    match (op, errno?) {
        (Op::Kernel { way: Way::IoUring, .. }, libc::ENOSYS | libc::EPERM) => {
            Some("io_uring is not to be had here")
        }
        (Op::Kernel { way: Way::Direct, .. }, libc::EOPNOTSUPP) => {
            Some("no direct I/O on this filesystem (TMPDIR names it)")
        }
        (Op::Into { .. }, libc::EPERM | libc::EACCES) => Some("another process may not write into this one"),
        (Op::Guest { .. }, libc::ENODEV) => Some("KVM is not to be had here"),
        _ => None,
    }
}

pub(super) fn pinned(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(64, Backing::Anonymous)?;
    judge.touch(area, 1, 77)?;
    judge.watch(area)?;
    // The pages are written first, so that the tracker does not protect them while they are pinned.
    for (number, pages) in [area.part(3, 9), area.part(20, 1), area.part(30, 30)].into_iter().enumerate() {
        let value = 100 + 10 * number as u8;
        judge.touch(pages, 1, value)?;
        let pin = Op::Pin { at: pages.start, length: pages.len() };
        match judge.workload().perform(pin).map_err(|error| error.raw_os_error()) {
            Ok(_) => {}
            Err(Some(libc::ENOSYS | libc::EPERM)) => {
                return Err(Stop::skip("io_uring is not to be had here"));
            }
            Err(errno) => return Err(Stop::fail(format!("{pin:?}: errno {errno:?}"))),
        }
        judge.check()?;
        for round in 1..=ROUNDS {
            judge.perform(Op::WritePinned { value: value + round })?;
            judge.check()?;
        }
        // Written, and unpinned before the collect.
        judge.perform(Op::WritePinned { value: value + 9 })?;
        judge.perform(Op::Unpin)?;
        judge.check()?;
        judge.check()?;
    }
    Ok(())
}

pub(super) fn signal_frames(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(16, Backing::Anonymous)?;
    judge.watch(area)?;
    for round in 1..=ROUNDS {
        judge.perform(Op::Fill { at: area.start, length: area.len(), value: round })?;
        judge.check()?;
        if judge.perform(Op::Signal { at: area.start, length: area.len() })? != 1 {
            return Err(Stop::fail("the signal did not come"));
        }
        judge.check()?;
    }
    Ok(())
}
