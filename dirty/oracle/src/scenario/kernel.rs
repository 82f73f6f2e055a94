// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that no instruction of the program makes. What a record says of them is held against what happens: seen
//! means written and reported, fails means `EFAULT` (or `EIO`, from `/proc/PID/mem`) and nothing lost.

use libdirty::{Capabilities, Sees, page_size};

use crate::judge::Judge;
use crate::op::{Backing, Op, Way};
use crate::outcome::Stop;

const EPOCHS: u8 = 4;

pub(super) fn read(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::Read, |record| record.kernel_writes)
}

pub(super) fn recvmsg(judge: &mut Judge) -> Result<(), Stop> {
    write(judge, Way::Recvmsg, |record| record.kernel_writes)
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

fn write(judge: &mut Judge, way: Way, sees: fn(&Capabilities) -> Sees) -> Result<(), Stop> {
    let area = judge.map(16, Backing::Anonymous)?;
    judge.touch(area.part(0, 8), 1, 77)?;
    judge.watch(area)?;
    let mut failed = false;
    for epoch in 1..=EPOCHS {
        // Once to pages with content, which are armed by every back end, once to some that had none at first.
        for first in [1, 9] {
            let (at, length) = (area.page(first) + 100, 3 * page_size());
            let op = Op::Kernel { way, at, length, value: epoch };
            let done = judge.workload().perform(op);
            let errno = done.as_ref().err().and_then(std::io::Error::raw_os_error);
            if way == Way::IoUring && matches!(errno, Some(libc::ENOSYS | libc::EPERM)) {
                return Err(Stop::skip("io_uring is not to be had here"));
            }
            if sees(judge.capabilities()) == Sees::Fails {
                failed |= matches!(errno, Some(libc::EFAULT | libc::EIO));
                if !failed {
                    return Err(Stop::fail(format!("{op:?} should fail with EFAULT or EIO: {done:?}")));
                }
                judge.check()?;
                // As a program must that knows: write to each page by itself first.
                judge.touch(area.part(first, 4), 1, 50 + epoch)?;
                judge.perform(op)?;
            } else if !matches!(done, Ok(bytes) if bytes == length as i64) {
                return Err(Stop::fail(format!("{op:?} of {length} bytes: {done:?}")));
            }
            judge.check()?;
        }
    }
    Ok(())
}

pub(super) fn signal_frames(judge: &mut Judge) -> Result<(), Stop> {
    let area = judge.map(16, Backing::Anonymous)?;
    judge.watch(area)?;
    for epoch in 1..=EPOCHS {
        judge.perform(Op::Fill { at: area.start, length: area.len(), value: epoch })?;
        judge.check()?;
        if judge.perform(Op::Signal { at: area.start, length: area.len() })? != 1 {
            return Err(Stop::fail("the signal did not come"));
        }
        judge.check()?;
    }
    Ok(())
}
