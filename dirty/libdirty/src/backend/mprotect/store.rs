// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the SIGSEGV handler and `mprotect(2)` have to know of the processor.
//!
//! Invariant: only a store is ours. A jump into watched data must not be taken for one: it would fault for ever.

use std::ffi::c_void;

/// # Errors
/// On a processor for which nobody has written this yet.
pub(super) fn is_supported() -> Result<(), String> {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Ok(());
    }
    Err(format!(
        "telling a store from a jump is written for x86-64 and arm64, not for this processor ({})",
        std::env::consts::ARCH
    ))
}

/// Whether `mprotect(2)` may take the protection of memory away and give it back.
///
/// arm64: what a program built for branch target identification may execute loses that property (PROT_BTI), and the
/// list of mappings does not show it. Only memory that is writable and executable at once is concerned.
pub(super) fn may_protect(protection: i32) -> bool {
    let both = libc::PROT_WRITE | libc::PROT_EXEC;
    !(cfg!(target_arch = "aarch64") && protection & both == both)
}

/// Whether the faulting instruction stores: bit 1 of the page fault's error code.
///
/// # Safety
/// `context` is what the kernel passes to a handler.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn is_store(context: *mut c_void) -> bool {
    const WRITE: i64 = 1 << 1;
    // SAFETY: by contract.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0 }
}

/// Whether the faulting instruction stores: what the processor said of the fault (ESR_EL1) is one of the records at
/// the end of the signal frame.
///
/// # Safety
/// `context` is what the kernel passes to a handler.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn is_store(context: *mut c_void) -> bool {
    // SAFETY: by contract; the records follow `pstate`, aligned to 16 bytes.
    let records = unsafe {
        let pstate = &raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext.pstate;
        let start = pstate.add(1).cast::<u8>();
        std::slice::from_raw_parts(start.add(start.align_offset(16)), RECORDS)
    };
    syndrome(records).is_some_and(|esr| {
        const DATA_ABORT: u64 = 0x24; // from user space
        const WRITE: u64 = 1 << 6;
        const CACHE_MAINTENANCE: u64 = 1 << 8; // which sets WRITE and stores nothing
        esr >> 26 & 0x3f == DATA_ABORT && esr & (WRITE | CACHE_MAINTENANCE) == WRITE
    })
}

/// On other processors nothing is ours.
///
/// # Safety
/// None is needed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) unsafe fn is_store(_context: *mut c_void) -> bool {
    false
}

/// Bytes of `sigcontext.__reserved`.
#[cfg(target_arch = "aarch64")]
const RECORDS: usize = 4096;

/// The value in `struct esr_context`. Each record begins with its magic number and its size; two zeros end them.
#[cfg(any(target_arch = "aarch64", test))]
fn syndrome(records: &[u8]) -> Option<u64> {
    const ESR_MAGIC: u32 = 0x4553_5201;
    let word = |at: usize| Some(u32::from_ne_bytes(records.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0;
    loop {
        let (magic, size) = (word(at)?, word(at + 4)? as usize);
        if magic == ESR_MAGIC && size >= 16 {
            return Some(u64::from_ne_bytes(records.get(at + 8..at + 16)?.try_into().ok()?));
        }
        if size < 8 {
            return None;
        }
        at = at.checked_add(size)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(magic: u32, size: u32, value: u64) -> Vec<u8> {
        let mut bytes = [magic.to_ne_bytes(), size.to_ne_bytes()].concat();
        bytes.extend(value.to_ne_bytes());
        bytes.resize(bytes.len().max(size as usize), 0);
        bytes
    }

    #[test]
    fn the_syndrome_is_found_behind_other_records() {
        let (vectors, esr) = (record(0x4650_8001, 528, 7), record(0x4553_5201, 16, 0x9200_004f));
        let end = record(0, 0, 0);
        assert_eq!(syndrome(&[vectors.clone(), esr.clone(), end.clone()].concat()), Some(0x9200_004f));
        assert_eq!(syndrome(&[esr, end.clone()].concat()), Some(0x9200_004f));
        assert_eq!(syndrome(&[vectors, end].concat()), None);
    }

    #[test]
    fn records_that_are_cut_short_have_none() {
        assert_eq!(syndrome(&[]), None);
        assert_eq!(syndrome(&record(0x4553_5201, 16, 1)[..15]), None);
        assert_eq!(syndrome(&record(0x4553_5201, 8, 1)[..8]), None);
        assert_eq!(syndrome(&record(1, u32::MAX, 1)[..16]), None);
    }
}
