// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts a kernel and its initramfs into memory and the first vCPU at its 64-bit entry (Linux's boot protocol,
//! Documentation/x86/boot.rst).
//!
//! Invariant: what does not fit is refused with its size; nothing overlaps.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::layout;

/// `XLF_KERNEL_64` of setup_header.xloadflags: there is a 64-bit entry, 0x200 behind the 32-bit one.
const HAS_64_BIT_ENTRY: u16 = 1;
/// The longest command line that the kernel takes, if its header does not say so.
const COMMAND_LINE_MAX: usize = 2047;

/// Load all that the kernel needs and return its entry.
pub fn load(
    memory: &GuestMemoryMmap,
    kernel: &Path,
    initramfs: Option<&Path>,
    command_line: &str,
) -> Result<u64> {
    let (loaded, entry) = load_kernel(memory, kernel)?;
    let mut header = loaded.setup_header.unwrap_or(setup_header {
        boot_flag: 0xaa55,
        header: 0x5372_6448,
        kernel_alignment: 0x0020_0000,
        initrd_addr_max: 0x7fff_ffff,
        cmdline_size: COMMAND_LINE_MAX as u32,
        ..Default::default()
    });
    header.type_of_loader = 0xff;

    let longest = header.cmdline_size as usize;
    ensure!(
        command_line.len() <= longest
            && command_line.len() < (layout::MP_TABLE - layout::COMMAND_LINE) as usize,
        "the command line has {} bytes, this kernel takes {longest}",
        command_line.len()
    );
    ensure!(!command_line.contains('\0'), "the command line has a zero byte");
    memory.write_slice(command_line.as_bytes(), GuestAddress(layout::COMMAND_LINE))?;
    memory.write_obj(0_u8, GuestAddress(layout::COMMAND_LINE + command_line.len() as u64))?;
    header.cmd_line_ptr = layout::COMMAND_LINE as u32;

    if let Some(path) = initramfs {
        // What the kernel says it needs to unpack itself, from where it was built to run.
        let reserved = loaded.kernel_end.max(header.pref_address + u64::from(header.init_size));
        let (address, size) = load_initramfs(memory, path, reserved, header.initrd_addr_max)?;
        header.ramdisk_image = address;
        header.ramdisk_size = size;
    }

    let mut zero_page = boot_params { hdr: header, ..Default::default() };
    for (start, end, kind) in [
        (0, layout::MP_TABLE, 1),
        (layout::MP_TABLE, layout::HIGH_MEMORY, 2),
        (layout::HIGH_MEMORY, memory.last_addr().raw_value() + 1, 1),
    ] {
        let area = boot_e820_entry { addr: start, size: end - start, r#type: kind };
        zero_page.e820_table[usize::from(zero_page.e820_entries)] = area;
        zero_page.e820_entries += 1;
    }
    memory.write_obj(zero_page, GuestAddress(layout::ZERO_PAGE))?;
    write_tables(memory)?;
    Ok(entry)
}

fn load_kernel(memory: &GuestMemoryMmap, path: &Path) -> Result<(KernelLoaderResult, u64)> {
    let open = || File::open(path).with_context(|| format!("kernel {}", path.display()));
    let high = Some(GuestAddress(layout::HIGH_MEMORY));
    let elf = Elf::load(memory, None, &mut open()?, high);
    if let Ok(loaded) = elf {
        let entry = loaded.kernel_load.raw_value();
        return Ok((loaded, entry));
    }
    let loaded = BzImage::load(memory, None, &mut open()?, high).with_context(|| {
        format!("{} is neither a bzImage nor an ELF kernel that fits into memory", path.display())
    })?;
    let header = loaded.setup_header.context("a bzImage without a setup header")?;
    if header.xloadflags & HAS_64_BIT_ENTRY == 0 {
        bail!("{} has no 64-bit entry", path.display());
    }
    let needed = header.pref_address + u64::from(header.init_size);
    let size = memory.last_addr().raw_value() + 1;
    ensure!(
        needed <= size,
        "{} needs {} MiB of memory to unpack itself",
        path.display(),
        needed.div_ceil(1 << 20)
    );
    let entry = loaded.kernel_load.raw_value() + 0x200;
    Ok((loaded, entry))
}

/// Load the initramfs as high as the kernel allows, and return its address and size.
fn load_initramfs(memory: &GuestMemoryMmap, path: &Path, reserved: u64, limit: u32) -> Result<(u32, u32)> {
    let name = || format!("initramfs {}", path.display());
    let mut file = File::open(path).with_context(name)?;
    let size = file.metadata().with_context(name)?.len();
    let end = (memory.last_addr().raw_value() + 1).min(u64::from(limit) + 1);
    let address = end.checked_sub(size).map(|start| start & !0xfff).filter(|start| *start >= reserved);
    let Some(address) = address else {
        bail!("{} of {} MiB does not fit beside the kernel", name(), size.div_ceil(1 << 20));
    };
    let length = usize::try_from(size)?;
    memory.read_exact_volatile_from(GuestAddress(address), &mut file, length).with_context(name)?;
    Ok((u32::try_from(address)?, u32::try_from(size)?))
}

const CODE: u16 = 0x10;
const DATA: u16 = 0x18;

fn segment(selector: u16) -> kvm_segment {
    let code = selector == CODE;
    kvm_segment {
        limit: 0xffff_ffff,
        selector,
        type_: if code { 11 } else { 3 },
        present: 1,
        s: 1,
        l: u8::from(code),
        db: u8::from(!code),
        g: 1,
        ..Default::default()
    }
}

/// Descriptors, and page tables that map the first 4 GiB to themselves.
///
/// Their accessed and dirty bits are set, so that the processor has nothing to write to them.
pub fn write_tables(memory: &GuestMemoryMmap) -> Result<()> {
    for (slot, descriptor) in [(2, 0x00af_9b00_0000_ffff_u64), (3, 0x00cf_9300_0000_ffff)] {
        memory.write_obj(descriptor, GuestAddress(layout::GDT + slot * 8))?;
    }
    let table = |number: u64| layout::PAGE_TABLES + number * 0x1000;
    memory.write_obj(table(1) | 0x63, GuestAddress(table(0)))?;
    for gib in 0..4 {
        memory.write_obj(table(2 + gib) | 0x63, GuestAddress(table(1) + gib * 8))?;
        for block in 0..512 {
            let entry = (gib << 30) | (block << 21) | 0xe3;
            memory.write_obj(entry, GuestAddress(table(2 + gib) + block * 8))?;
        }
    }
    Ok(())
}

/// Long mode with these tables.
pub fn long_mode(sregs: &mut kvm_sregs) {
    sregs.cs = segment(CODE);
    for data in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
        *data = segment(DATA);
    }
    sregs.gdt.base = layout::GDT;
    sregs.gdt.limit = 4 * 8 - 1;
    sregs.cr3 = layout::PAGE_TABLES;
    sregs.cr4 |= 1 << 5; // PAE
    sregs.cr0 |= 1 << 31 | 1 << 4 | 1; // paging, ET, protection
    sregs.efer |= 1 << 10 | 1 << 8; // long mode active and enabled
}

/// Registers at the entry.
pub fn registers(entry: u64) -> kvm_regs {
    kvm_regs { rip: entry, rsi: layout::ZERO_PAGE, rflags: 2, ..Default::default() }
}
