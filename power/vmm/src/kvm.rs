// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's interface for e500v2: the part of linux/kvm.h and asm/kvm.h that is used here, and safe wrappers of its calls.
//!
//! Structures have only fields of fixed width, so that they are the same on the host that tests them; a test
//! compares them, and all numbers, with the kernel's headers as cross-compiled (tests/abi.c).

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::ptr;

use anyhow::{Context, Result, bail, ensure};

use crate::mapping::Mapping;
use crate::tree::Hypercall;

const DEVICE: &str = "/dev/kvm";
const API_VERSION: i32 = 12;

const CAP_SW_TLB: u32 = 69;
const CAP_DEVICE_CTRL: u32 = 89;
const CAP_IRQ_MPIC: u32 = 90;
const CAP_PPC_GET_PVINFO: u32 = 57;

const EXIT_UNKNOWN: u32 = 0;
const EXIT_MMIO: u32 = 6;

const DEV_TYPE_FSL_MPIC_20: u32 = 1;
const DEV_MPIC_GRP_MISC: u32 = 1;
const DEV_MPIC_BASE_ADDR: u64 = 0;
const DEV_MPIC_GRP_IRQ_ACTIVE: u32 = 3;

const MMU_FSL_BOOKE_NOHV: u32 = 0;
const PVINFO_FLAGS_EV_IDLE: u32 = 1;

/// Numbers of ioctls on PowerPC: the direction has three bits, one of which means "none".
const fn number(direction: u32, call: u32, size: usize) -> u32 {
    direction << 29 | (size as u32) << 16 | 0xae << 8 | call
}
const NONE: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 4;

const GET_API_VERSION: u32 = number(NONE, 0x00, 0);
const CREATE_VM: u32 = number(NONE, 0x01, 0);
const CHECK_EXTENSION: u32 = number(NONE, 0x03, 0);
const GET_VCPU_MMAP_SIZE: u32 = number(NONE, 0x04, 0);
const CREATE_VCPU: u32 = number(NONE, 0x41, 0);
const SET_USER_MEMORY_REGION: u32 = number(WRITE, 0x46, size_of::<MemoryRegion>());
const RUN: u32 = number(NONE, 0x80, 0);
const GET_REGS: u32 = number(READ, 0x81, size_of::<Registers>());
const SET_REGS: u32 = number(WRITE, 0x82, size_of::<Registers>());
const PPC_GET_PVINFO: u32 = number(WRITE, 0xa1, size_of::<PvInfo>());
const ENABLE_CAP: u32 = number(WRITE, 0xa3, size_of::<EnableCap>());
const DIRTY_TLB: u32 = number(WRITE, 0xaa, size_of::<DirtyTlb>());
const CREATE_DEVICE: u32 = number(READ | WRITE, 0xe0, size_of::<CreateDevice>());
const SET_DEVICE_ATTR: u32 = number(WRITE, 0xe1, size_of::<DeviceAttr>());

/// struct kvm_regs
#[repr(C)]
#[derive(Debug, Default, Clone)]
pub struct Registers {
    /// Of the next instruction.
    pub pc: u64,
    pub cr: u64,
    pub ctr: u64,
    pub lr: u64,
    pub xer: u64,
    /// Machine state.
    pub msr: u64,
    srr: [u64; 2],
    pid: u64,
    sprg: [u64; 8],
    /// General purpose.
    pub gpr: [u64; 32],
}

impl fmt::Display for Registers {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pc, cr, ctr, lr, xer, msr, srr, pid, .. } = self;
        writeln!(to, "pc  {pc:08x} msr {msr:08x} lr {lr:08x} ctr {ctr:08x} cr {cr:08x} xer {xer:08x}")?;
        write!(to, "srr0 {:08x} srr1 {:08x} pid {pid}", srr[0], srr[1])?;
        for (i, value) in self.gpr.iter().enumerate() {
            let gap = if i % 8 == 0 { format!("\nr{i:<2}") } else { String::new() };
            write!(to, "{gap} {value:08x}")?;
        }
        Ok(())
    }
}

#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_phys_addr: u64,
    memory_size: u64,
    userspace_addr: u64,
}

#[repr(C)]
struct EnableCap {
    cap: u32,
    flags: u32,
    args: [u64; 4],
    pad: [u8; 64],
}

#[repr(C)]
struct PvInfo {
    flags: u32,
    hcall: [u32; 4],
    pad: [u8; 108],
}

#[repr(C)]
struct CreateDevice {
    kind: u32,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct DeviceAttr {
    flags: u32,
    group: u32,
    attr: u64,
    addr: u64,
}

/// struct kvm_book3e_206_tlb_entry
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TlbEntry {
    mas8: u32,
    mas1: u32,
    mas2: u64,
    mas7_3: u64,
}

#[repr(C)]
struct TlbParams {
    sizes: [u32; 4],
    ways: [u32; 4],
    reserved: [u32; 8],
}

#[repr(C)]
struct ConfigTlb {
    params: u64,
    array: u64,
    mmu_type: u32,
    array_len: u32,
}

#[repr(C)]
struct DirtyTlb {
    bitmap: u64,
    num_dirty: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Mmio {
    phys_addr: u64,
    data: [u8; 8],
    len: u32,
    is_write: u8,
}

#[repr(C)]
union Detail {
    hardware_exit_reason: u64,
    mmio: Mmio,
}

/// The beginning of struct kvm_run.
#[repr(C)]
struct Run {
    request: [u8; 8],
    exit_reason: u32,
    ready: [u8; 4],
    cr8: u64,
    apic_base: u64,
    detail: Detail,
}

/// Make an ioctl.
///
/// # Safety
/// `argument` is what this call takes, and what it points to is as large as the call says and lives as long as KVM
/// uses it.
unsafe fn call(fd: BorrowedFd<'_>, number: u32, argument: usize) -> io::Result<i32> {
    // SAFETY: the caller guarantees it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as libc::Ioctl, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Make an ioctl whose argument is a number, not an address.
fn call_with(fd: BorrowedFd<'_>, number: u32, argument: usize) -> io::Result<i32> {
    // SAFETY: all callers use ioctls that take a number.
    unsafe { call(fd, number, argument) }
}

/// An address, as KVM has them in structures.
fn address<T: ?Sized>(of: &T) -> u64 {
    ptr::from_ref(of).cast::<u8>().addr() as u64
}

/// Take ownership of a descriptor that an ioctl returned.
fn taken(fd: RawFd) -> File {
    // SAFETY: it is new, so it has no other owner.
    unsafe { File::from_raw_fd(fd) }
}

/// KVM itself.
pub struct Kvm(File);

impl Kvm {
    /// Open it.
    ///
    /// # Errors
    /// There is no KVM, or not the right one.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE);
        let kvm =
            Self(file.with_context(|| format!("cannot open {DEVICE}; does the kernel have KVM_E500V2?"))?);
        let version = call_with(kvm.0.as_fd(), GET_API_VERSION, 0)?;
        ensure!(version == API_VERSION, "KVM's interface has version {version}, but {API_VERSION} is needed");
        for (capability, name) in [
            (CAP_SW_TLB, "SW_TLB (KVM_E500V2)"),
            (CAP_DEVICE_CTRL, "DEVICE_CTRL"),
            (CAP_IRQ_MPIC, "IRQ_MPIC (KVM_MPIC)"),
        ] {
            let there = call_with(kvm.0.as_fd(), CHECK_EXTENSION, capability as usize)?;
            ensure!(there > 0, "this kernel's KVM lacks {name}");
        }
        Ok(kvm)
    }

    /// Make a VM.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn create_vm(&self) -> Result<Vm> {
        let fd = call_with(self.0.as_fd(), CREATE_VM, 0).context("KVM does not create a VM")?;
        let run_size = call_with(self.0.as_fd(), GET_VCPU_MMAP_SIZE, 0)?;
        let run_size = run_size as usize;
        ensure!(run_size >= size_of::<Run>(), "KVM shares only {run_size} bytes of a vCPU");
        let pvinfo = call_with(self.0.as_fd(), CHECK_EXTENSION, CAP_PPC_GET_PVINFO as usize)? > 0;
        Ok(Vm { fd: taken(fd), run_size, pvinfo })
    }
}

/// A VM.
pub struct Vm {
    fd: File,
    run_size: usize,
    pvinfo: bool,
}

impl Vm {
    /// Its descriptor, whose number is part of its name in debugfs.
    pub fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Its memory, from address 0 on.
    ///
    /// # Errors
    /// KVM returns an error.
    ///
    /// # Safety
    /// The memory stays mapped as long as a vCPU may run.
    pub unsafe fn set_memory(&self, memory: &Mapping) -> Result<()> {
        let region = MemoryRegion {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.len() as u64,
            userspace_addr: memory.address().addr().get() as u64,
        };
        // SAFETY: KVM copies the structure; the caller guarantees that the memory stays.
        unsafe { call(self.fd.as_fd(), SET_USER_MEMORY_REGION, address(&region) as usize) }
            .context("KVM does not accept the guest's memory")?;
        Ok(())
    }

    /// The guest's hypercall instructions.
    ///
    /// # Errors
    /// KVM does not offer them.
    pub fn hypercall(&self) -> Result<Hypercall> {
        ensure!(self.pvinfo, "this kernel's KVM has no hypercalls");
        let mut info = PvInfo { flags: 0, hcall: [0; 4], pad: [0; 108] };
        // SAFETY: KVM fills the structure, which is as large as the call's number says.
        unsafe { call(self.fd.as_fd(), PPC_GET_PVINFO, ptr::from_mut(&mut info).addr()) }
            .context("KVM does not report its hypercall instruction")?;
        Ok(Hypercall { instructions: info.hcall, idle: info.flags & PVINFO_FLAGS_EV_IDLE != 0 })
    }

    /// Make its interrupt controller, with registers at `base`.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn create_mpic(&self, base: u64) -> Result<Mpic> {
        let mut device = CreateDevice { kind: DEV_TYPE_FSL_MPIC_20, fd: 0, flags: 0 };
        // SAFETY: KVM fills the structure, which is as large as the call's number says.
        unsafe { call(self.fd.as_fd(), CREATE_DEVICE, ptr::from_mut(&mut device).addr()) }
            .context("KVM does not create an interrupt controller")?;
        let mpic = Mpic(taken(device.fd as RawFd));
        mpic.set(DEV_MPIC_GRP_MISC, DEV_MPIC_BASE_ADDR, &base)
            .with_context(|| format!("KVM does not place the interrupt controller at {base:#x}"))?;
        Ok(mpic)
    }

    /// Make vCPU `number`, connected to the interrupt controller, with a TLB that has `first` in TLB1.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn create_vcpu(&self, number: u32, mpic: &Mpic, first: TlbEntry) -> Result<Vcpu> {
        let fd = call_with(self.fd.as_fd(), CREATE_VCPU, number as usize);
        let fd = taken(fd.with_context(|| format!("KVM does not create vCPU {number}"))?);
        let run =
            Mapping::shared(fd.as_fd(), 0, self.run_size).context("KVM does not share the vCPU's state")?;
        let vcpu = Vcpu { tlb: tlb(&fd, first)?, fd, run };
        // SAFETY: the argument is a descriptor.
        unsafe { vcpu.enable(CAP_IRQ_MPIC, [mpic.0.as_raw_fd() as u64, number.into(), 0, 0]) }
            .context("KVM does not connect the vCPU to the interrupt controller")?;
        Ok(vcpu)
    }
}

/// The interrupt controller.
pub struct Mpic(File);

impl Mpic {
    /// Set an interrupt's line.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn set_line(&self, source: u32, up: bool) -> io::Result<()> {
        self.set(DEV_MPIC_GRP_IRQ_ACTIVE, source.into(), &u32::from(up))
    }

    /// `value` has the width of the attribute.
    fn set<T>(&self, group: u32, attr: u64, value: &T) -> io::Result<()> {
        let attr = DeviceAttr { flags: 0, group, attr, addr: address(value) };
        // SAFETY: KVM copies the structure, and what it points to.
        unsafe { call(self.0.as_fd(), SET_DEVICE_ATTR, address(&attr) as usize) }?;
        Ok(())
    }
}

impl TlbEntry {
    const VALID: u32 = 1 << 31;
    /// The supervisor may execute, write and read.
    const SUPERVISOR: u64 = 0x15;

    /// A page at 0, in both address spaces; `size` is a power of two.
    pub fn page_at_0(size: u32) -> Self {
        // MAS1's TSIZE counts powers of two KiB from bit 7 on.
        let tsize = (size >> 10).trailing_zeros() << 7;
        Self { mas8: 0, mas1: Self::VALID | tsize, mas2: 0, mas7_3: Self::SUPERVISOR }
    }
}

/// An e500v2's TLBs: TLB0 and TLB1.
const TLB_SIZES: [u32; 4] = [512, 16, 0, 0];
const TLB_WAYS: [u32; 4] = [4, 16, 0, 0];
const TLB_ENTRIES: usize = (TLB_SIZES[0] + TLB_SIZES[1]) as usize;

/// Why a vCPU stopped.
#[derive(Debug, PartialEq, Eq)]
pub enum Exit {
    /// The guest writes where there is no memory.
    Write {
        /// Physical.
        address: u64,
        /// The data, of which the first `length` bytes count.
        data: [u8; 8],
        /// At most 8.
        length: usize,
    },
    /// The guest reads where there is no memory.
    Read {
        /// Physical.
        address: u64,
        /// At most 8.
        length: usize,
    },
    /// For an unknown reason; this is the hardware's.
    Unknown(u64),
    /// A reason that e500v2 does not have.
    Other(u32),
}

/// A vCPU. Its descriptor is closed first, then the shared memory is unmapped.
pub struct Vcpu {
    fd: File,
    run: Mapping,
    #[expect(dead_code, reason = "KVM uses it as long as there is the vCPU")]
    tlb: Mapping,
}

impl Vcpu {
    /// # Safety
    /// The arguments are what the capability takes.
    unsafe fn enable(&self, cap: u32, args: [u64; 4]) -> io::Result<()> {
        // SAFETY: the caller guarantees it.
        unsafe { enable(self.fd.as_fd(), cap, args) }
    }

    /// Run it until it stops. It may stop without a reason: call again after `Interrupted` or `WouldBlock`.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn run(&mut self) -> io::Result<()> {
        call_with(self.fd.as_fd(), RUN, 0).map(drop)
    }

    fn shared(&self) -> *mut Run {
        self.run.address().as_ptr().cast()
    }

    /// Why it stopped.
    ///
    /// # Errors
    /// KVM reports an impossible access.
    pub fn exit(&self) -> Result<Exit> {
        let run = self.shared();
        // SAFETY: the mapping is at least that large (see `create_vm`), page-aligned, and KVM writes to it in `run`
        // only. All of its values are valid.
        let (reason, hardware, mmio) = unsafe {
            let detail = &raw const (*run).detail;
            (
                (&raw const (*run).exit_reason).read_volatile(),
                (&raw const (*detail).hardware_exit_reason).read_volatile(),
                (&raw const (*detail).mmio).read_volatile(),
            )
        };
        let length = mmio.len as usize;
        match reason {
            EXIT_UNKNOWN => Ok(Exit::Unknown(hardware)),
            EXIT_MMIO if length > mmio.data.len() => bail!("KVM reports an access of {length} bytes"),
            EXIT_MMIO if mmio.is_write != 0 => {
                Ok(Exit::Write { address: mmio.phys_addr, data: mmio.data, length })
            }
            EXIT_MMIO => Ok(Exit::Read { address: mmio.phys_addr, length }),
            other => Ok(Exit::Other(other)),
        }
    }

    /// Set the result of a read.
    pub fn answer(&mut self, data: [u8; 8]) {
        // SAFETY: as in `exit`.
        unsafe { (&raw mut (*self.shared()).detail.mmio.data).write_volatile(data) };
    }

    /// Its registers.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn registers(&self) -> io::Result<Registers> {
        let mut registers = Registers::default();
        // SAFETY: KVM fills the structure, which is as large as the call's number says.
        unsafe { call(self.fd.as_fd(), GET_REGS, ptr::from_mut(&mut registers).addr()) }?;
        Ok(registers)
    }

    /// Change its registers.
    ///
    /// # Errors
    /// KVM returns an error.
    pub fn set_registers(&mut self, registers: &Registers) -> io::Result<()> {
        // SAFETY: KVM copies the structure.
        unsafe { call(self.fd.as_fd(), SET_REGS, address(registers) as usize) }.map(drop)
    }
}

/// # Safety
/// The arguments are what the capability takes.
unsafe fn enable(vcpu: BorrowedFd<'_>, cap: u32, args: [u64; 4]) -> io::Result<()> {
    let enable = EnableCap { cap, flags: 0, args, pad: [0; 64] };
    // SAFETY: KVM copies the structure; the caller guarantees the arguments.
    unsafe { call(vcpu, ENABLE_CAP, address(&enable) as usize) }.map(drop)
}

/// Give a vCPU a TLB that is shared with KVM. Without one KVM assumes a CPU with TLBs of other sizes, and the guest
/// loops.
fn tlb(vcpu: &File, first: TlbEntry) -> Result<Mapping> {
    let length = TLB_ENTRIES * size_of::<TlbEntry>();
    // MAP_SHARED, so that copy-on-write never replaces a page that KVM uses.
    let array = Mapping::anonymous(length, libc::MAP_SHARED).context("cannot map a TLB")?;
    // SAFETY: it is mapped, and page-aligned; the first entry of TLB1 is in it.
    unsafe { array.address().cast::<TlbEntry>().add(TLB_SIZES[0] as usize).write(first) };
    let params = TlbParams { sizes: TLB_SIZES, ways: TLB_WAYS, reserved: [0; 8] };
    let config = ConfigTlb {
        params: address(&params),
        array: array.address().addr().get() as u64,
        mmu_type: MMU_FSL_BOOKE_NOHV,
        array_len: length as u32,
    };
    // SAFETY: KVM copies the structures, and pins the array, which is as long as KVM is told.
    unsafe { enable(vcpu.as_fd(), CAP_SW_TLB, [address(&config), 0, 0, 0]) }
        .context("KVM does not accept a TLB")?;
    let bitmap = [u32::MAX; TLB_ENTRIES.div_ceil(32)];
    let dirty = DirtyTlb { bitmap: address(&bitmap), num_dirty: TLB_ENTRIES as u32 };
    // SAFETY: KVM copies the structure, and what it points to: a bit for each entry.
    unsafe { call(vcpu.as_fd(), DIRTY_TLB, address(&dirty) as usize) }
        .context("KVM does not read its TLB")?;
    Ok(array)
}

// The layout must match what KVM writes.
const _: () = assert!(offset_of!(Run, detail) == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::must_agree;
    use std::collections::BTreeMap;

    const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/abi.c");

    /// The values of this file.
    fn ours() -> BTreeMap<String, u64> {
        let mut table = BTreeMap::new();
        let mut put =
            |name: &str, value: u64| assert!(table.insert(name.into(), value).is_none(), "{name} twice");
        macro_rules! values { ($($name:literal $value:expr;)*) => { $(put($name, u64::from($value));)* } }
        macro_rules! structures { ($($name:literal $kind:ty { $($field:literal $($path:tt).+;)* })*) => { $(
            put(concat!("sizeof ", $name).replace(' ', "_").as_str(), size_of::<$kind>() as u64);
            $(put(concat!($name, ".", $field), offset_of!($kind, $($path).+) as u64);)*
        )* } }
        values! {
            "KVM_API_VERSION" API_VERSION as u32;
            "KVM_CAP_SW_TLB" CAP_SW_TLB;
            "KVM_CAP_DEVICE_CTRL" CAP_DEVICE_CTRL;
            "KVM_CAP_IRQ_MPIC" CAP_IRQ_MPIC;
            "KVM_CAP_PPC_GET_PVINFO" CAP_PPC_GET_PVINFO;
            "KVM_EXIT_UNKNOWN" EXIT_UNKNOWN;
            "KVM_EXIT_MMIO" EXIT_MMIO;
            "KVM_DEV_TYPE_FSL_MPIC_20" DEV_TYPE_FSL_MPIC_20;
            "KVM_DEV_MPIC_GRP_MISC" DEV_MPIC_GRP_MISC;
            "KVM_DEV_MPIC_BASE_ADDR" DEV_MPIC_BASE_ADDR;
            "KVM_DEV_MPIC_GRP_IRQ_ACTIVE" DEV_MPIC_GRP_IRQ_ACTIVE;
            "KVM_MMU_FSL_BOOKE_NOHV" MMU_FSL_BOOKE_NOHV;
            "KVM_PPC_PVINFO_FLAGS_EV_IDLE" PVINFO_FLAGS_EV_IDLE;
            "KVM_GET_API_VERSION" GET_API_VERSION;
            "KVM_CREATE_VM" CREATE_VM;
            "KVM_CHECK_EXTENSION" CHECK_EXTENSION;
            "KVM_GET_VCPU_MMAP_SIZE" GET_VCPU_MMAP_SIZE;
            "KVM_CREATE_VCPU" CREATE_VCPU;
            "KVM_SET_USER_MEMORY_REGION" SET_USER_MEMORY_REGION;
            "KVM_RUN" RUN;
            "KVM_GET_REGS" GET_REGS;
            "KVM_SET_REGS" SET_REGS;
            "KVM_PPC_GET_PVINFO" PPC_GET_PVINFO;
            "KVM_ENABLE_CAP" ENABLE_CAP;
            "KVM_DIRTY_TLB" DIRTY_TLB;
            "KVM_CREATE_DEVICE" CREATE_DEVICE;
            "KVM_SET_DEVICE_ATTR" SET_DEVICE_ATTR;
        }
        structures! {
            "kvm_regs" Registers {
                "pc" pc; "cr" cr; "ctr" ctr; "lr" lr; "xer" xer; "msr" msr; "srr0" srr; "pid" pid; "sprg0" sprg;
                "gpr" gpr;
            }
            "kvm_userspace_memory_region" MemoryRegion {
                "slot" slot; "flags" flags; "guest_phys_addr" guest_phys_addr; "memory_size" memory_size;
                "userspace_addr" userspace_addr;
            }
            "kvm_enable_cap" EnableCap { "cap" cap; "flags" flags; "args" args; }
            "kvm_ppc_pvinfo" PvInfo { "flags" flags; "hcall" hcall; }
            "kvm_create_device" CreateDevice { "type" kind; "fd" fd; "flags" flags; }
            "kvm_device_attr" DeviceAttr { "flags" flags; "group" group; "attr" attr; "addr" addr; }
            "kvm_book3e_206_tlb_entry" TlbEntry { "mas8" mas8; "mas1" mas1; "mas2" mas2; "mas7_3" mas7_3; }
            "kvm_book3e_206_tlb_params" TlbParams { "tlb_sizes" sizes; "tlb_ways" ways; "reserved" reserved; }
            "kvm_config_tlb" ConfigTlb {
                "params" params; "array" array; "mmu_type" mmu_type; "array_len" array_len;
            }
            "kvm_dirty_tlb" DirtyTlb { "bitmap" bitmap; "num_dirty" num_dirty; }
        }
        // These are parts of one structure.
        for (name, offset) in [
            ("exit_reason", offset_of!(Run, exit_reason)),
            ("hw.hardware_exit_reason", offset_of!(Run, detail)),
            ("mmio.phys_addr", offset_of!(Run, detail.mmio.phys_addr)),
            ("mmio.data", offset_of!(Run, detail.mmio.data)),
            ("mmio.len", offset_of!(Run, detail.mmio.len)),
            ("mmio.is_write", offset_of!(Run, detail.mmio.is_write)),
        ] {
            put(&format!("kvm_run.{name}"), offset as u64);
        }
        table
    }

    #[test]
    fn the_headers_say_the_same() {
        must_agree(&ours(), SOURCE, "KVM_DIRTY_TLB", "kvm_run.mmio.data");
    }

    #[test]
    fn registers_are_shown() {
        let mut registers = Registers { pc: 0xc000_0100, ..Registers::default() };
        registers.gpr[9] = 0x1234;
        let text = registers.to_string();
        assert!(text.starts_with("pc  c0000100 msr 00000000"), "{text}");
        assert!(text.contains("\nr8  00000000 00001234 "), "{text}");
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn pages_have_their_size() {
        // As QEMU and the e500 core's manual have them: MAS1's TSIZE, powers of four KiB from bit 8 on.
        assert_eq!(TlbEntry::page_at_0(256 << 20).mas1, 0x8000_0000 | 9 << 8);
        assert_eq!(TlbEntry::page_at_0(16 << 20).mas1, 0x8000_0000 | 7 << 8);
    }
}
