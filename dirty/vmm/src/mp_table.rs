// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The MultiProcessor table (Intel, version 1.4), by which a kernel without ACPI finds its processors and the
//! interrupt controllers. No crate of rust-vmm has it.

use anyhow::Result;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::layout;

const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
const VERSION: u8 = 0x14;
/// The pointer structure in front of the table.
const POINTER_SIZE: usize = 16;
/// As many as the kernel looks at by default.
pub const MAX_CPUS: u8 = 16;

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg()
}

fn entries(cpus: u8) -> (u16, Vec<u8>) {
    let io_apic = cpus;
    let mut all: Vec<Vec<u8>> = Vec::new();
    for cpu in 0..cpus {
        // Enabled; the first is the one that boots. Family 6, with an FPU and an APIC.
        let flags = 1 | if cpu == 0 { 2 } else { 0 };
        let mut entry = vec![0, cpu, VERSION, flags, 0, 6, 0, 0];
        entry.extend(0x201_u32.to_le_bytes());
        entry.extend([0; 8]);
        all.push(entry);
    }
    all.push([&[1, 0][..], b"ISA   "].concat());
    all.push([&[2, io_apic, 0x11, 1][..], &IO_APIC.to_le_bytes()].concat());
    // ISA interrupts, each to the pin of the same number; then what the local APICs' own pins are.
    all.extend((0..16).map(|irq| vec![3, 0, 0, 0, 0, irq, io_apic, irq]));
    all.push(vec![4, 3, 0, 0, 0, 0, 0, 0]);
    all.push(vec![4, 1, 0, 0, 0, 0, 0xff, 1]);
    (all.len() as u16, all.concat())
}

/// Write the table for so many processors.
pub fn write(memory: &GuestMemoryMmap, cpus: u8) -> Result<()> {
    let (count, entries) = entries(cpus);
    let mut table = Vec::new();
    table.extend(b"PCMP");
    table.extend((44 + entries.len() as u16).to_le_bytes());
    table.extend([4, 0]);
    table.extend(b"TRAPLESSVMM         ");
    table.extend([0; 6]);
    table.extend(count.to_le_bytes());
    table.extend(LOCAL_APIC.to_le_bytes());
    table.extend([0; 4]);
    table.extend(entries);
    table[7] = checksum(&table);

    let mut pointer = Vec::from(*b"_MP_");
    pointer.extend((layout::MP_TABLE as u32 + POINTER_SIZE as u32).to_le_bytes());
    pointer.extend([1, 4, 0, 0, 0, 0, 0, 0]);
    pointer[10] = checksum(&pointer);

    memory.write_slice(&pointer, GuestAddress(layout::MP_TABLE))?;
    memory.write_slice(&table, GuestAddress(layout::MP_TABLE + POINTER_SIZE as u64))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_zero_and_lengths_right() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        for cpus in [1, 2, MAX_CPUS] {
            write(&memory, cpus).unwrap();
            let read = |at: u64, length| {
                let mut bytes = vec![0; length];
                memory.read_slice(&mut bytes, GuestAddress(layout::MP_TABLE + at)).unwrap();
                bytes
            };
            assert_eq!(checksum(&read(0, POINTER_SIZE)), 0);
            let length = u16::from_le_bytes(read(20, 2).try_into().unwrap());
            let table = read(POINTER_SIZE as u64, usize::from(length));
            assert_eq!(checksum(&table), 0);
            assert_eq!(table.len(), 44 + usize::from(cpus) * 20 + 8 + 8 + 16 * 8 + 2 * 8);
        }
    }
}
