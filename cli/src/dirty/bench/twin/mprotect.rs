// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mprotect` and a SIGSEGV handler.
//!
//! The handler makes the faulting page writable and sets its bit; a collect write-protects the whole range and takes
//! the bits. A fault outside the range, or a failing mprotect, ends the program as it would without us: the handler
//! restores the default action and returns into the same fault.

use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};

use anyhow::{Context, Result, ensure};
use libdirty::{PageRange, page_size};

use super::bits::{Bits, Runs};
use crate::dirty::bench::method::Method;

/// What the handler works on; null when no twin is armed.
static ARMED: AtomicPtr<Bits> = AtomicPtr::new(std::ptr::null_mut());

pub(super) struct Twin {
    /// Owned; freed on drop.
    bits: *mut Bits,
    range: PageRange,
    before: libc::sigaction,
    runs: Runs,
}

impl Twin {
    pub(super) fn start(range: PageRange) -> Result<Self> {
        let bits = Box::into_raw(Box::new(Bits::new(range)));
        let taken =
            ARMED.compare_exchange(std::ptr::null_mut(), bits, Ordering::AcqRel, Ordering::Acquire).is_err();
        if taken {
            // SAFETY: made above, and not shared.
            drop(unsafe { Box::from_raw(bits) });
        }
        ensure!(!taken, "the mprotect twin is armed already");
        // SAFETY: the struct is plain data, for which zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `handle` is an SA_SIGINFO handler that only makes async-signal-safe calls.
        let done = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
        assert_eq!(done, 0, "sigaction takes a valid signal and valid structs");
        let twin = Twin { bits, range, before, runs: Runs::default() };
        protect(range, libc::PROT_READ).context("mprotect")?;
        Ok(twin)
    }
}

impl Method for Twin {
    fn collect(&mut self) -> Result<()> {
        protect(self.range, libc::PROT_READ).context("mprotect")?;
        self.runs.clear();
        // SAFETY: owned by `self`, shared with the handler as atomics only.
        unsafe { &*self.bits }.take(&mut self.runs);
        Ok(())
    }

    fn reported(&self) -> Vec<PageRange> {
        self.runs.ranges()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        protect(self.range, libc::PROT_READ | libc::PROT_WRITE).expect("opening what was open before");
        // SAFETY: restores the action that `start` found.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const self.before, std::ptr::null_mut()) };
        ARMED.store(std::ptr::null_mut(), Ordering::Release);
        // SAFETY: made by `start`; the range is open, so the handler does not run on it any more.
        drop(unsafe { Box::from_raw(self.bits) });
    }
}

fn protect(range: PageRange, protection: i32) -> io::Result<()> {
    // SAFETY: changes the protection of the benchmark's own region; pages stay readable.
    let done = unsafe { libc::mprotect(range.start() as *mut _, range.len(), protection) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

extern "C" fn handle(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, of a fault.
    let address = unsafe { (*info).si_addr() } as usize & !(page_size() - 1);
    // SAFETY: null, or the bits of an armed twin, which outlive its faults.
    let armed = unsafe { ARMED.load(Ordering::Acquire).as_ref() };
    if let Some(bits) = armed.filter(|bits| bits.range().contains_address(address)) {
        // SAFETY: one page of the twin's range.
        let done =
            unsafe { libc::mprotect(address as *mut _, page_size(), libc::PROT_READ | libc::PROT_WRITE) };
        if done == 0 {
            bits.set(address);
            return;
        }
    }
    // SAFETY: the default action for the fault, which happens again on return.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}
