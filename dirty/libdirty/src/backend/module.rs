// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel module `trapless_dirty`, which finds writes without a fault in the tracked process, by one of three
//! mechanisms: the dirty bit of its page-table entries (`dbit`), the log of the hypervisor (`spml`), the
//! log of the processor (`epml`).
//!
//! The module keeps the promise of this crate by itself: it watches addresses, whatever is mapped there, and counts
//! memory that was unmapped, discarded or moved as written. So nothing can be armed too late here, and replaced
//! memory needs no special case. What this file adds:
//! - The process that was attached to is the [`Target`]: after attaching, the pidfd shows that the process still
//!   lives, so that no other had its pid.
//! - What the module watches but the tracker does not (an UNWATCH that failed) is not reported.
//! - After a collect that failed, all is armed anew and reported.

use std::io;

use super::{Armed, Backend, Collection, Part, Place};
use crate::capability::BackendKind;
use crate::device::{Device, abi};
use crate::extent::{PageRange, Reason};
use crate::target::Target;

#[derive(Debug)]
pub(super) struct Module {
    kind: BackendKind,
    device: Device,
    /// Room for what the module has found: grows when it was full.
    room: Vec<abi::Range>,
}

const FIRST_ROOM: usize = 512;
const MOST_ROOM: usize = 1 << 16; // 1 MiB

impl Module {
    /// `kind` by `mechanism`.
    pub(super) fn open(kind: BackendKind, mechanism: u32, target: &Target) -> Result<Self, String> {
        let device = Device::open(mechanism)?;
        let pid = target.pid();
        device
            .attach(pid, mechanism)
            .map_err(|error| format!("the module trapless_dirty refuses process {pid}: {error}"))?;
        if target.has_exited() {
            return Err(format!("process {pid} has ended"));
        }
        Ok(Module { kind, device, room: vec![abi::Range::default(); FIRST_ROOM] })
    }

    /// Have the module look, and report what it found.
    fn find(&mut self, work: &mut Collection<'_>) -> io::Result<()> {
        let has_overrun = self.device.collect()?;
        if has_overrun {
            work.parts.iter().for_each(|part| work.dirty.push(part.range, Reason::Overflow));
        }
        // After an overrun all is reported already.
        self.take(|range| {
            if !has_overrun {
                report(work, range);
            }
        })
    }

    /// Take all that the module has found; pages found meanwhile may come in any order, or with the next call.
    fn take(&mut self, mut each: impl FnMut(PageRange)) -> io::Result<()> {
        loop {
            let room = self.room.len();
            let found = self.device.read(&mut self.room)?;
            for range in found {
                let ends = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
                let range = ends.and_then(|(start, end)| PageRange::new(start, end).ok());
                each(range.ok_or_else(|| io::Error::other("READ stored what is no range of pages"))?);
            }
            if found.len() < room {
                return Ok(());
            }
            if room < MOST_ROOM {
                self.room.resize(2 * room, abi::Range::default());
            }
        }
    }
}

/// Report what of `range` lies in parts.
fn report(work: &mut Collection<'_>, range: PageRange) {
    let first = work.parts.partition_point(|part| part.range.end() <= range.start());
    for part in &work.parts[first..] {
        let Some(piece) = part.range.intersection(range) else { break };
        work.dirty.push(piece, Reason::Written);
    }
}

impl Backend for Module {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn arm(&mut self, _target: &Target, part: &Part, _place: &Place<'_>) -> Armed {
        // Device memory, no memory for the books, or watched already by a mistake: each collect reports it, and tries
        // again.
        match self.device.watch(part.range) {
            Ok(()) => Armed::Watched,
            Err(_) => Armed::Unsupported,
        }
    }

    fn disarm(&mut self, _target: &Target, range: PageRange, _mapped: bool) {
        // Fails where the process is gone, and then there is nothing to do.
        let _ = self.device.unwatch(range);
    }

    fn collect(&mut self, _target: &Target, work: &mut Collection<'_>) {
        if self.find(work).is_err() {
            work.lost.extend(work.parts.iter().map(|part| part.range));
        }
    }
}
