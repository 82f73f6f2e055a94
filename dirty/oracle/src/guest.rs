// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine of the program (KVM), whose guest writes the program's memory. The processor finds these
//! pages by page tables that KVM keeps: no entry of the program's own is looked at when the guest writes.
//!
//! Invariant: memory that was given to the guest once stays so until this is dropped; what KVM has mapped stays
//! mapped from one write to the next, unless the kernel takes it away.

use std::io;
use std::ops::Range;

use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use libdirty::page_size;

/// `rep stosb; hlt`, in real mode.
const PROGRAM: [u8; 3] = [0xf3, 0xaa, 0xf4];

/// Where memory is given to the guest, one range behind the other; below is the program.
const FIRST: u64 = 0x1_0000;
const BEHIND: u64 = 0x10_0000;

#[repr(align(4096))]
#[derive(Debug)]
struct Page([u8; 4096]);

/// A machine with one processor.
#[derive(Debug)]
pub struct Guest {
    vcpu: VcpuFd,
    vm: VmFd,
    /// The program's page, at address 0 of the guest.
    _program: Box<Page>,
    /// What the guest was given, and where its own address of that is.
    given: Vec<(Range<usize>, u64)>,
    /// Where the next range goes.
    next: u64,
}

impl Guest {
    /// Make it.
    ///
    /// # Errors
    /// `ENODEV` where KVM is not to be had, else the kernel's word.
    pub fn new() -> io::Result<Self> {
        let kvm = Kvm::new().map_err(|error| match error.errno() {
            libc::ENOENT | libc::EACCES | libc::EPERM => io::Error::from_raw_os_error(libc::ENODEV),
            _ => error.into(),
        })?;
        let vm = kvm.create_vm()?;
        let mut program = Box::new(Page([0; 4096]));
        program.0[..PROGRAM.len()].copy_from_slice(&PROGRAM);
        let mut guest =
            Guest { vcpu: vm.create_vcpu(0)?, vm, _program: program, given: Vec::new(), next: FIRST };
        guest.give(guest._program.0.as_ptr() as usize, guest._program.0.len(), 0)?;
        Ok(guest)
    }

    /// Have it write `length` bytes of `value` at `at`, memory of the arena, less than 60 KiB; returns `length`.
    ///
    /// # Errors
    /// The kernel's word: `EFAULT` where the memory cannot be written.
    pub fn write(&mut self, at: usize, length: usize, value: u8) -> io::Result<i64> {
        let start = at / page_size() * page_size();
        let end = (at + length).next_multiple_of(page_size());
        let base = self.place(start..end)?;
        let mut special = self.vcpu.get_sregs()?;
        (special.cs.base, special.cs.selector) = (0, 0);
        (special.es.base, special.es.selector) = (base, (base >> 4) as u16);
        self.vcpu.set_sregs(&special)?;
        self.vcpu.set_regs(&kvm_regs {
            rax: value.into(),
            rcx: length as u64,
            rdi: (at - start) as u64,
            rflags: 2,
            ..Default::default()
        })?;
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::Hlt) => return Ok(length as i64),
                Ok(other) => return Err(io::Error::other(format!("the guest ended with {other:?}"))),
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Where the guest has this range; given to it if it is new.
    fn place(&mut self, range: Range<usize>) -> io::Result<u64> {
        if let Some((_, base)) = self.given.iter().find(|(given, _)| *given == range) {
            return Ok(*base);
        }
        let base = self.next;
        self.next = base + range.len() as u64;
        if self.next > BEHIND {
            return Err(io::Error::other("the guest has no room for more memory"));
        }
        self.give(range.start, range.len(), base)?;
        self.given.push((range, base));
        Ok(base)
    }

    fn give(&mut self, at: usize, length: usize, base: u64) -> io::Result<()> {
        let region = kvm_userspace_memory_region {
            slot: (self.given.len() + usize::from(base != 0)) as u32,
            flags: 0,
            guest_phys_addr: base,
            memory_size: length as u64,
            userspace_addr: at as u64,
        };
        // SAFETY: the program's page lives as long as the machine; else it is memory of the arena, which may go
        // away and where no object lies.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(io::Error::from)
    }
}
