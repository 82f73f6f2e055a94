// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Getting vCPUs out of the guest, so that what the processors have logged reaches the rings.
//!
//! Invariant: a vCPU that was in the guest when [`VcpuSet::flush`] began has left it when it returns. A vCPU
//! that waits for a lock is not in the guest; so two that flush at once do not wait for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use kvm_ioctls::VcpuFd;

/// One vCPU, as the others see it.
#[derive(Debug)]
pub struct Vcpu {
    inside: AtomicBool,
    exits: AtomicU64,
    thread: AtomicU64,
    /// kvm_run.immediate_exit: KVM looks at it on its way into the guest.
    leave: &'static AtomicU8,
}

impl Vcpu {
    /// The vCPU's mapping must never go: it is a VMM's whole life.
    pub fn new(vcpu: &'static mut VcpuFd) -> (Arc<Self>, &'static mut VcpuFd) {
        let leave = &raw mut vcpu.get_kvm_run().immediate_exit;
        // SAFETY: a byte of the shared mapping, which lives as long as the vCPU: for ever. Nobody accesses it but
        // through this reference, and the kernel.
        let leave = unsafe { AtomicU8::from_ptr(leave) };
        let state = Self {
            inside: AtomicBool::new(false),
            exits: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            leave,
        };
        (Arc::new(state), vcpu)
    }

    /// The calling thread is the one that runs this vCPU.
    pub fn is_run_here(&self) {
        // SAFETY: always succeeds.
        self.thread.store(unsafe { libc::pthread_self() }, Ordering::SeqCst);
    }

    /// Just before KVM_RUN.
    pub fn enter(&self) {
        self.leave.store(0, Ordering::SeqCst);
        self.inside.store(true, Ordering::SeqCst);
    }

    /// Just after.
    pub fn left(&self) {
        self.exits.fetch_add(1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
    }
}

/// All vCPUs.
#[derive(Debug, Default)]
pub struct VcpuSet(pub Vec<Arc<Vcpu>>);

/// The signal that interrupts KVM_RUN.
fn signal() -> i32 {
    vmm_sys_util::signal::SIGRTMIN()
}

extern "C" fn ignore(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

impl VcpuSet {
    /// Let the signal interrupt, and do nothing else.
    pub fn prepare() -> anyhow::Result<()> {
        Ok(vmm_sys_util::signal::register_signal_handler(signal(), ignore)?)
    }

    /// Wait until every vCPU was out of the guest.
    pub fn flush(&self) {
        let kicked: Vec<_> = self.0.iter().filter_map(|vcpu| kick(vcpu).map(|exits| (vcpu, exits))).collect();
        for (vcpu, exits) in kicked {
            while vcpu.inside.load(Ordering::SeqCst) && vcpu.exits.load(Ordering::SeqCst) == exits {
                thread::yield_now();
            }
        }
    }
}

/// Send a vCPU out if it is in; what it counted before.
fn kick(vcpu: &Vcpu) -> Option<u64> {
    let exits = vcpu.exits.load(Ordering::SeqCst);
    if !vcpu.inside.load(Ordering::SeqCst) {
        return None;
    }
    // In this order: on its way in, KVM sees the byte; in already, the signal.
    vcpu.leave.store(1, Ordering::SeqCst);
    // SAFETY: a vCPU that was ever inside has named its thread, and threads of vCPUs end with the process.
    unsafe { libc::pthread_kill(vcpu.thread.load(Ordering::SeqCst), signal()) };
    Some(exits)
}
