// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the host's log to the guest's ring, as the guest's calls ask.
//!
//! Invariant: every page that the log reported is in the guest's ring, or the next DRAIN returns OVERRUN. So does
//! each DRAIN once the host has failed to protect pages again. Logging is on while, and only while, the guest
//! has a process enabled and a ring.

use std::collections::HashSet;
use std::io;

use vm_memory::GuestMemoryMmap;

use crate::abi;
use crate::guest_ring::GuestRing;

/// Where the log comes from: KVM, or a model of it in tests.
pub trait Log {
    /// Switch logging of all of the guest's memory.
    fn set_logging(&mut self, on: bool) -> io::Result<()>;
    /// Hand each page number that was logged to `take`. False: some are lost.
    fn harvest(&mut self, take: &mut dyn FnMut(u64)) -> bool;
    /// Log again what was harvested, from the next write on.
    fn rearm(&mut self) -> io::Result<()>;
}

/// What happened, for the one who runs the VMM.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// DRAIN calls.
    pub drains: u64,
    /// Entries written to the guest's ring.
    pub forwarded: u64,
    /// Exits of vCPUs whose log was full.
    pub log_full: u64,
    /// DRAINs that were answered with OVERRUN.
    pub overruns: u64,
    /// SCHEDULE_IN and SCHEDULE_OUT calls.
    pub schedules: u64,
}

/// The state behind the calls.
#[derive(Debug)]
pub struct Forwarder<L> {
    log: L,
    memory: GuestMemoryMmap,
    ring: Option<GuestRing>,
    enabled: HashSet<u64>,
    overrun: bool,
    /// The host failed to protect pages again, or to switch logging: nothing that it says is complete.
    broken: bool,
    /// What happened so far.
    pub counts: Counts,
}

impl<L: Log> Forwarder<L> {
    /// Nothing is enabled and there is no ring.
    pub fn new(log: L, memory: GuestMemoryMmap) -> Self {
        Self {
            log,
            memory,
            ring: None,
            enabled: HashSet::new(),
            overrun: false,
            broken: false,
            counts: Counts::default(),
        }
    }

    /// Answer a call. For DRAIN every vCPU has left the guest since the call was made.
    pub fn call(&mut self, function: u32, first: u64, second: u64) -> i32 {
        match function {
            abi::REGISTER_RING => match GuestRing::new(&self.memory, first, second) {
                Some(ring) => {
                    // What the old ring was not read to its end for is lost with it.
                    self.overrun |= !self.enabled.is_empty();
                    self.ring = Some(ring);
                    abi::OK
                }
                None => abi::INVALID,
            },
            abi::UNREGISTER_RING => {
                self.ring = None;
                self.enabled.clear();
                self.switch(false)
            }
            abi::ENABLE | abi::DISABLE | abi::SCHEDULE_IN | abi::SCHEDULE_OUT
                if first >= abi::MAX_PROCESSES =>
            {
                abi::INVALID
            }
            abi::ENABLE if self.ring.is_none() => abi::NO_RING,
            abi::ENABLE => {
                let is_first = self.enabled.is_empty();
                if !self.enabled.insert(first) {
                    return abi::INVALID;
                }
                let result = if is_first { self.switch(true) } else { abi::OK };
                if result != abi::OK {
                    self.enabled.remove(&first);
                }
                result
            }
            abi::DISABLE if !self.enabled.remove(&first) => abi::INVALID,
            abi::DISABLE if self.enabled.is_empty() => self.switch(false),
            abi::DISABLE => abi::OK,
            abi::SCHEDULE_IN | abi::SCHEDULE_OUT => {
                self.counts.schedules += 1;
                abi::OK
            }
            abi::DRAIN if self.ring.is_none() => abi::NO_RING,
            abi::DRAIN => self.drain(),
            _ => abi::INVALID,
        }
    }

    /// A vCPU cannot go on before its log is emptied.
    pub fn log_is_full(&mut self) {
        self.counts.log_full += 1;
        self.forward();
    }

    fn switch(&mut self, on: bool) -> i32 {
        let switched = self.log.set_logging(on).and_then(|()| {
            // What is left of before: nobody asked for it.
            self.log.harvest(&mut |_| ());
            self.log.rearm()
        });
        match switched {
            Ok(()) => {
                if on {
                    self.overrun = false;
                }
                abi::OK
            }
            Err(error) => self.fail("switch logging", &error),
        }
    }

    fn drain(&mut self) -> i32 {
        self.counts.drains += 1;
        self.forward();
        let overrun = self.overrun || self.broken;
        self.overrun = false;
        if overrun {
            self.counts.overruns += 1;
            return abi::OVERRUN;
        }
        abi::OK
    }

    fn forward(&mut self) {
        let (ring, counts) = (&mut self.ring, &mut self.counts);
        let mut fits = true;
        let complete = self.log.harvest(&mut |frame| {
            // Without a ring nothing is enabled, and this is a rest that nobody asked for.
            let Some(ring) = ring.as_mut() else { return };
            match ring.push(frame) {
                Ok(()) => counts.forwarded += 1,
                Err(_) => fits = false,
            }
        });
        fits &= self.ring.as_ref().is_none_or(|ring| ring.publish().is_ok());
        self.overrun |= !fits || !complete;
        if let Err(error) = self.log.rearm() {
            self.fail("protect pages again", &error);
        }
    }

    fn fail(&mut self, what: &str, error: &io::Error) -> i32 {
        if !self.broken {
            crate::remark(format_args!(
                "KVM could not {what} ({error}); from now on everything is reported as overrun"
            ));
        }
        self.broken = true;
        abi::FAILED
    }
}

#[cfg(test)]
mod tests;
