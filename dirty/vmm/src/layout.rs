// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where things are in the guest's physical memory. One region from 0; a PC's low megabyte; no PCI.

/// GDT, then the page tables of the first 4 GiB: both only for the first instructions of the kernel.
pub const GDT: u64 = 0x500;
/// Page map level 4, followed by one level 3 and four of level 2.
pub const PAGE_TABLES: u64 = 0x9000;
/// `struct boot_params`.
pub const ZERO_PAGE: u64 = 0x7000;
/// The kernel's command line.
pub const COMMAND_LINE: u64 = 0x20000;
/// End of low memory, and the MP table, which the kernel looks for in the last KiB of it.
pub const MP_TABLE: u64 = 0x9fc00;
/// Where memory goes on after the hole of ROMs and video memory.
pub const HIGH_MEMORY: u64 = 0x100000;
/// Below are the APICs: memory ends before.
pub const MEMORY_LIMIT: u64 = 3 << 30;
/// For the processor's own use on Intel.
pub const TSS: usize = 0xfffb_d000;
