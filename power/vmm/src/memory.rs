// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory: backed as requested, zero at first, and written only within its bounds.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::raw::c_int;

use anyhow::{Context, Result, bail, ensure};

use crate::arguments::Backing;
use crate::mapping::Mapping;

/// The map of the host's physical memory.
const IOMEM: &str = "/proc/iomem";

/// Map `size` bytes.
///
/// # Errors
/// The host does not have that memory; the message says what to change.
pub fn map(backing: Backing, size: u32) -> Result<Mapping> {
    let length = size as usize;
    match backing {
        Backing::Anonymous => Mapping::anonymous(length, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
            .with_context(|| format!("cannot map {size} bytes of memory")),
        Backing::Hugetlb(page) => huge(page, length),
        Backing::Devmem(address) => physical(address, length),
    }
}

fn huge(page: u64, length: usize) -> Result<Mapping> {
    let size = format!("{} KiB", page >> 10);
    ensure!(
        (length as u64).is_multiple_of(page),
        "the guest's memory is not made of whole huge pages of {size}"
    );
    let flags =
        libc::MAP_PRIVATE | libc::MAP_HUGETLB | (page.trailing_zeros() as c_int) << libc::MAP_HUGE_SHIFT;
    Mapping::anonymous(length, flags).map_err(|error| {
        let hint = match error.raw_os_error() {
            Some(libc::ENOMEM) => "too few are free: boot the host with hugepagesz= and hugepages=",
            Some(libc::EINVAL) => "the host has none of that size: see /sys/kernel/mm/hugepages",
            _ => "mmap failed",
        };
        anyhow::Error::new(error).context(format!("no huge pages of {size} for {length} bytes: {hint}"))
    })
}

fn physical(address: u64, length: usize) -> Result<Mapping> {
    let map = fs::read_to_string(IOMEM).with_context(|| format!("cannot read {IOMEM}; is /proc mounted?"))?;
    if let Some(used) = used_by_host(&map, address, length as u64) {
        bail!("the host's kernel uses physical memory at {used}: boot it with mem={address:#x}");
    }
    let file = OpenOptions::new().read(true).write(true).open("/dev/mem").context("cannot open /dev/mem")?;
    let mut mapping = Mapping::shared(file.as_fd(), address, length)
        .with_context(|| format!("cannot map {length} bytes of physical memory at {address:#x}"))?;
    // Clear what another guest has left there.
    mapping.bytes_mut().fill(0);
    Ok(mapping)
}

/// Return a part of the host's own memory that overlaps `length` bytes at `address`, if any.
fn used_by_host(map: &str, address: u64, length: u64) -> Option<&str> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let overlaps = |range: &str| {
        let (first, last) = range.split_once('-')?;
        Some(hex(first)? < address.saturating_add(length) && address <= hex(last)?)
    };
    // A line that cannot be parsed might be such a part.
    let mut ranges = map.lines().filter_map(|line| line.trim_start().strip_suffix(" : System RAM"));
    ranges.find(|range| overlaps(range).unwrap_or(true))
}

/// The bytes at a range of the guest's addresses.
///
/// # Errors
/// The range is not in the memory.
pub fn at(memory: &mut [u8], range: Range<u32>) -> Result<&mut [u8]> {
    let bytes = range.start as usize..range.end as usize;
    memory.get_mut(bytes).with_context(|| format!("{range:#x?} is not in the guest's memory"))
}

/// Read all of a file of `into.len()` bytes.
///
/// # Errors
/// It cannot be read, or has changed its size.
pub fn fill(into: &mut [u8], mut file: impl Read) -> Result<()> {
    file.read_exact(into)?;
    let mut more = Vec::new();
    file.take(1).read_to_end(&mut more)?;
    ensure!(more.is_empty(), "it grew while it was read");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_ends() {
        let mut mapping = map(Backing::Anonymous, 16 << 20).unwrap();
        assert_eq!(mapping.len(), 16 << 20);
        let memory = mapping.bytes_mut();
        assert!(at(memory, 0..16 << 20).unwrap().iter().all(|&byte| byte == 0));
        assert!(at(memory, 1..(16 << 20) + 1).is_err());
        assert!(at(memory, u32::MAX - 1..u32::MAX).is_err());
        #[expect(clippy::reversed_empty_ranges)]
        let backwards = 2..1;
        assert!(at(memory, backwards).is_err());
    }

    #[test]
    fn pages_that_are_not_there_are_reported() {
        let error = format!("{:#}", map(Backing::Hugetlb(64 << 20), 16 << 20).unwrap_err());
        assert!(error.contains("not made of whole huge pages of 65536 KiB"), "{error}");
        // No machine that runs this test has huge pages of 8 KiB.
        let error = format!("{:#}", map(Backing::Hugetlb(8 << 10), 16 << 20).unwrap_err());
        assert!(error.contains("/sys/kernel/mm/hugepages"), "{error}");
    }

    #[test]
    fn the_hosts_own_memory_is_refused() {
        let map = "00000000-0fffffff : System RAM\n  00001000-00001fff : Kernel\n20000000-2000ffff : System RAM\n\
                   fe0004500-fe00045ff : serial\n";
        let used = |address, length| used_by_host(map, address, length);
        assert_eq!(used(0x1000_0000, 0x1000_0000), None);
        assert_eq!(used(0xffff_f000, 0x1000), None);
        assert_eq!(used(0xf_e000_0000, 0x1000), None);
        assert_eq!(used(0x1000_0000, 0x1000_1000), Some("20000000-2000ffff"));
        assert_eq!(used(0x2000_f000, 0x1000), Some("20000000-2000ffff"));
        assert_eq!(used(0, 0x1000), Some("00000000-0fffffff"));
        assert_eq!(used(0x0fff_f000, u64::MAX), Some("00000000-0fffffff"));
        assert_eq!(used_by_host("x-y : System RAM", 0, 1), Some("x-y"));
    }

    #[test]
    fn files_keep_their_size() {
        let mut room = [0; 4];
        fill(&mut room, &b"1234"[..]).unwrap();
        assert_eq!(&room, b"1234");
        assert!(fill(&mut room, &b"123"[..]).is_err());
        assert!(fill(&mut room, &b"12345"[..]).unwrap_err().to_string().contains("grew"));
    }
}
