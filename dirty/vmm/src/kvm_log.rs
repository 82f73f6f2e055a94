// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's dirty log of a VM with one memory region: the rings of all its vCPUs as one [`Log`].
//!
//! Invariant: an entry that is not a page of the region counts as one that was lost.

use std::io;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kvm_bindings::{
    KVM_CAP_DIRTY_LOG_RING, KVM_MEM_LOG_DIRTY_PAGES, KVMIO, kvm_dirty_gfn, kvm_enable_cap,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, VcpuFd, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;

use crate::forward::Log;
use crate::kvm_ring::KvmRing;

ioctl_io_nr!(KVM_RESET_DIRTY_RINGS, KVMIO, 0xc7);

/// The reason of an exit that kvm-ioctls does not know: a ring must be emptied first.
pub const EXIT_RING_FULL: u32 = 31;

/// Entries of each ring. KVM stops a vCPU some 600 entries before the end (64, and what a PML buffer holds).
pub const ENTRIES: u32 = 4096;

const SLOT: u32 = 0;

/// Ask for rings, before the first vCPU is made.
pub fn request_rings(vm: &VmFd) -> Result<()> {
    let most = vm.check_extension_int(Cap::DirtyLogRing);
    let bytes = ENTRIES as usize * size_of::<kvm_dirty_gfn>();
    ensure!(most > 0, "this KVM has no dirty ring (KVM_CAP_DIRTY_LOG_RING, Linux 5.11)");
    ensure!(most as usize >= bytes, "this KVM's dirty ring holds {most} bytes, {bytes} are needed");
    let capability =
        kvm_enable_cap { cap: KVM_CAP_DIRTY_LOG_RING, args: [bytes as u64, 0, 0, 0], ..Default::default() };
    vm.enable_cap(&capability).context("KVM refuses its dirty ring")
}

/// The region of memory, and its log.
#[derive(Debug)]
pub struct KvmLog {
    vm: Arc<VmFd>,
    region: kvm_userspace_memory_region,
    rings: Vec<KvmRing>,
    /// Keeps the region mapped for as long as it may be registered with KVM.
    _memory: GuestMemoryMmap,
}

impl KvmLog {
    /// Give the VM its memory, which is not logged yet.
    pub fn new(vm: Arc<VmFd>, memory: &GuestMemoryMmap) -> Result<Self> {
        let start = GuestAddress(0);
        let whole = memory.find_region(start).context("memory begins at 0")?;
        let region = kvm_userspace_memory_region {
            slot: SLOT,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: whole.len(),
            userspace_addr: memory.get_host_address(start)? as u64,
        };
        let log = Self { vm, region, rings: Vec::new(), _memory: memory.clone() };
        log.set_region().context("KVM takes no memory")?;
        Ok(log)
    }

    /// Take the log of a vCPU of the same VM.
    pub fn add(&mut self, vcpu: &VcpuFd) -> Result<()> {
        self.rings.push(KvmRing::map(vcpu, ENTRIES).context("a vCPU's dirty ring cannot be mapped")?);
        Ok(())
    }

    fn set_region(&self) -> io::Result<()> {
        // SAFETY: the address range is the mapping of `_memory`, which lives as long as `self`; the VM's vCPUs are
        // not run after `self` is dropped, as whoever runs them holds it.
        Ok(unsafe { self.vm.set_user_memory_region(self.region) }?)
    }
}

impl Log for KvmLog {
    fn set_logging(&mut self, on: bool) -> io::Result<()> {
        self.region.flags = if on { KVM_MEM_LOG_DIRTY_PAGES } else { 0 };
        self.set_region()
    }

    fn harvest(&mut self, take: &mut dyn FnMut(u64)) -> bool {
        let pages = self.region.memory_size >> 12;
        let mut complete = true;
        for ring in &mut self.rings {
            let mut known = true;
            let whole = ring.harvest(&mut |slot, page| {
                if slot == SLOT && page < pages {
                    take(page);
                } else {
                    known = false;
                }
            });
            complete &= whole && known;
        }
        complete
    }

    fn rearm(&mut self) -> io::Result<()> {
        if self.rings.is_empty() {
            return Ok(());
        }
        // SAFETY: takes no argument; only entries that were marked RESET are touched.
        match unsafe { ioctl(&*self.vm, KVM_RESET_DIRTY_RINGS()) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Make memory that begins at 0.
pub fn make_memory(bytes: usize) -> Result<GuestMemoryMmap> {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes)])
        .with_context(|| format!("{} MiB of guest memory", bytes >> 20))
}
