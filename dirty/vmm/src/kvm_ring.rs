// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One vCPU's dirty ring, shared with KVM.
//!
//! KVM marks an entry DIRTY when the page is first written; we mark it RESET when we have taken it; the ioctl
//! KVM_RESET_DIRTY_RINGS write-protects the page again and frees the entry. On an Intel host this ring *is* the
//! processor's PML log: KVM empties the 512 hardware entries into it at each exit.
//!
//! Invariant: entries are taken in order, each once, and never more than the ring has.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use kvm_bindings::{KVM_DIRTY_LOG_PAGE_OFFSET, kvm_dirty_gfn};
use kvm_ioctls::VcpuFd;

// enum kvm_dirty_gfn_flags, which the bindings have as macros they cannot take over.
const DIRTY: u32 = 1;
const RESET: u32 = 2;

/// The mapping of one vCPU's ring.
#[derive(Debug)]
pub struct KvmRing {
    entries: NonNull<kvm_dirty_gfn>,
    count: u32,
    next: u32,
}

// SAFETY: the mapping is owned by this value alone and lives until it is dropped; KVM's side is another
// kernel thread at any rate, which the atomic accesses below are for.
unsafe impl Send for KvmRing {}

impl KvmRing {
    /// Map the ring of a vCPU whose VM was made with rings of `count` entries, a power of two.
    pub fn map(vcpu: &VcpuFd, count: u32) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel picks; the result is checked.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::bytes(count),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                i64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * 4096,
            )
        };
        match NonNull::new(address.cast()) {
            Some(entries) if address != libc::MAP_FAILED => Ok(Self { entries, count, next: 0 }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn bytes(count: u32) -> usize {
        count as usize * size_of::<kvm_dirty_gfn>()
    }

    /// Hand each new entry, a slot and a page in it, to `take`. False: the ring was full to the last entry, which
    /// KVM never lets happen without losing some.
    pub fn harvest(&mut self, take: &mut dyn FnMut(u32, u64)) -> bool {
        for _ in 0..self.count {
            // SAFETY: the index is masked to the mapping's length; the pointer is valid while `self` lives.
            let entry = unsafe { self.entries.add((self.next & (self.count - 1)) as usize).as_ptr() };
            // SAFETY: aligned, inside of the mapping; everybody accesses the flags atomically.
            let flags = unsafe { AtomicU32::from_ptr(&raw mut (*entry).flags) };
            if flags.load(Ordering::Acquire) & (DIRTY | RESET) != DIRTY {
                return true;
            }
            // SAFETY: inside of the mapping; KVM does not write to an entry that is DIRTY.
            let (slot, offset) = unsafe { ((*entry).slot, (*entry).offset) };
            take(slot, offset);
            flags.store(RESET, Ordering::Release);
            self.next = self.next.wrapping_add(1);
        }
        false
    }
}

impl Drop for KvmRing {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing points into it.
        unsafe { libc::munmap(self.entries.as_ptr().cast(), Self::bytes(self.count)) };
    }
}
