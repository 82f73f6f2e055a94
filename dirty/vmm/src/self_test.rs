// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether this host's dirty ring can be believed: a guest of five instructions writes pages that we know, and
//! the ring must report these and no others, then once more after they were protected again.
//!
//! More pages are written than a ring holds: some hosts lose what does not fit and do not stop the vCPU.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs};
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress};

use crate::boot;
use crate::forward::Log;
use crate::kvm_log::{self, ENTRIES, EXIT_RING_FULL, KvmLog};

const PAGES: u64 = 3 * ENTRIES as u64;
const AGAIN: u64 = ENTRIES as u64 / 4;
const FIRST: u64 = 0x200;
const CODE: u64 = 0x1000;
/// Code and page tables. AMD's processors count walks of the guest's page tables as writes to them, and KVM reports
/// a page that is first read as written, when it maps it writable.
const TOUCHED: Range<u64> = 0..FIRST;

/// `next: mov %rdi,(%rdi); add $4096,%rdi; dec %rcx; jnz next; hlt`
const PROGRAM: [u8; 16] =
    [0x48, 0x89, 0x3f, 0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf1, 0xf4];

/// Fails with the reason why the ring cannot be used.
pub fn run(kvm: &Kvm) -> Result<()> {
    let vm = Arc::new(kvm.create_vm().context("KVM makes no VM")?);
    kvm_log::request_rings(&vm)?;
    let memory = kvm_log::make_memory(((FIRST + PAGES) * 4096) as usize)?;
    boot::write_tables(&memory)?;
    memory.write_slice(&PROGRAM, GuestAddress(CODE))?;
    let mut log = KvmLog::new(Arc::clone(&vm), &memory)?;
    let mut vcpu = vm.create_vcpu(0).context("KVM makes no vCPU")?;
    log.add(&vcpu)?;
    // KVM of recent 6.12 takes no long mode of a vCPU whose CPUID has none.
    vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?).context("KVM refuses its own CPUID")?;
    let mut sregs = vcpu.get_sregs()?;
    boot::long_mode(&mut sregs);
    vcpu.set_sregs(&sregs).context("KVM refuses long mode")?;
    log.set_logging(true).context("KVM does not log")?;

    for pages in [PAGES, AGAIN] {
        let registers =
            kvm_regs { rip: CODE, rdi: FIRST * 4096, rcx: pages, rflags: 2, ..Default::default() };
        vcpu.set_regs(&registers).context("KVM refuses registers")?;
        let mut reported = BTreeSet::new();
        let mut entries = 0_u64;
        loop {
            let halted = match vcpu.run() {
                Ok(VcpuExit::Hlt) => true,
                Ok(VcpuExit::Unsupported(EXIT_RING_FULL)) => false,
                Ok(other) => bail!("the guest of the self-test ended with {other:?}"),
                Err(error) if error.errno() == libc::EINTR => continue,
                Err(error) => bail!("the guest of the self-test does not run: {error}"),
            };
            let before = entries;
            let complete = log.harvest(&mut |page| {
                entries += 1;
                reported.insert(page);
            });
            ensure!(complete, "this host's dirty ring ran over without stopping the vCPU");
            log.rearm().context("KVM does not protect pages again")?;
            if halted {
                break;
            }
            ensure!(entries > before, "this host's dirty ring is full and empty at once");
        }
        let expected: BTreeSet<u64> = (FIRST..FIRST + pages).collect();
        let lost = expected.difference(&reported).count();
        let foreign: Vec<_> = reported.difference(&expected).filter(|page| !TOUCHED.contains(page)).collect();
        ensure!(
            lost == 0 && foreign.is_empty(),
            "this host's dirty ring cannot be believed: of {pages} pages written it lost {lost}, and it reported \
             these that were not: {foreign:x?}"
        );
    }
    Ok(())
}
