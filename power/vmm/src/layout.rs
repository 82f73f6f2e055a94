// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of the guest's physical memory, and constants that several files share.
//!
//! From 0 on: the kernel, the device tree, the initial root file system, without overlaps and within the memory.
//! The devices have the addresses of the board that the kernel knows as `fsl,qemu-e500`.

use std::ops::Range;

use thiserror::Error;

/// The least memory.
pub const MEMORY_MIN: u64 = 16 << 20;
/// The most memory: one page of an e500 must cover all that is loaded, and a 32-bit process must map it.
pub const MEMORY_MAX: u64 = 1 << 30;
/// The kernel's COMMAND_LINE_SIZE, with the final zero: it would truncate a longer one.
pub const COMMAND_LINE_SIZE: usize = 2048;

/// The registers of the devices.
pub const SOC: u32 = 0xe000_0000;
/// Their size.
pub const SOC_SIZE: u32 = 0x10_0000;
/// The serial port, below `SOC`.
pub const SERIAL: u32 = 0x4500;
/// Its size in the device tree.
pub const SERIAL_SIZE: u32 = 0x100;
/// Its source at the interrupt controller: one of those inside the chip, which are level-triggered.
pub const SERIAL_IRQ: u32 = 42;
/// The interrupt controller, below `SOC`.
pub const MPIC: u32 = 0x4_0000;
/// Its size.
pub const MPIC_SIZE: u32 = 0x4_0000;
/// The global utilities, below `SOC`.
pub const GUTS: u32 = 0xe_0000;
/// Their size.
pub const GUTS_SIZE: u32 = 0x1000;
/// The register of the global utilities that resets the chip, below `SOC`.
pub const RSTCR: u32 = GUTS + 0xb0;

/// The registers of virtio devices, one after another, below `SOC`.
pub const VIRTIO: u32 = 0x8_0000;
/// From one to the next.
pub const VIRTIO_STRIDE: u32 = 0x1000;
/// The size of each.
pub const VIRTIO_SIZE: u32 = 0x200;
/// The source of the first at the interrupt controller; those of the others follow.
pub const VIRTIO_IRQ: u32 = 48;
/// The most of them.
pub const VIRTIO_MOST: usize = 8;
/// Where processors wait to be started, an entry for each, below `SOC`.
pub const SPIN: u32 = 0xf_0000;
/// The size of an entry.
pub const SPIN_ENTRY: u32 = 32;
/// The most processors: as many as the boards have.
pub const CPUS_MOST: u32 = 2;

/// Room for the device tree, which is built when all addresses are known.
pub const TREE_ROOM: u32 = 64 << 10;
const TREE_ALIGN: u64 = 1 << 20;
const INITRAMFS_ALIGN: u64 = 4096;

/// The addresses of all parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The device tree, `TREE_ROOM` bytes.
    pub tree: u32,
    /// The initial root file system.
    pub initramfs: Option<Range<u32>>,
    /// The size of the page at 0 with which the kernel starts: it covers everything above.
    pub initial_page: u32,
}

/// Why it does not fit.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "the kernel ({kernel} bytes), its device tree and initramfs ({initramfs} bytes) need {needed} bytes, and the guest's memory has {memory}"
)]
pub struct TooSmall {
    kernel: u32,
    initramfs: u64,
    needed: u64,
    memory: u32,
}

/// Choose addresses behind a kernel that ends at `kernel`.
///
/// # Errors
/// They do not fit into the memory.
pub fn place(kernel: u32, initramfs: Option<u64>, memory: u32) -> Result<Layout, TooSmall> {
    let too_small = |needed| TooSmall { kernel, initramfs: initramfs.unwrap_or(0), needed, memory };
    let tree = u64::from(kernel).next_multiple_of(TREE_ALIGN);
    let behind = (tree + u64::from(TREE_ROOM)).next_multiple_of(INITRAMFS_ALIGN);
    let end = behind.saturating_add(initramfs.unwrap_or(0));
    let fits = |address: u64| match u32::try_from(address) {
        Ok(address) if end <= u64::from(memory) => Ok(address),
        _ => Err(too_small(end)),
    };
    Ok(Layout {
        tree: fits(tree)?,
        initramfs: initramfs.map(|_| Ok(fits(behind)?..fits(end)?)).transpose()?,
        initial_page: page_that_holds(fits(end)?),
    })
}

/// The smallest page of an e500 from 16 MiB on, each four times the one before.
fn page_that_holds(end: u32) -> u32 {
    let mut size = 16 << 20;
    while size < end {
        size *= 4;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_usual_case() {
        let layout = place(0x9_1234, Some(0x12_3456), 64 << 20).unwrap();
        let initramfs = Some(0x11_0000..0x11_0000 + 0x12_3456);
        assert_eq!(layout, Layout { tree: 0x10_0000, initramfs, initial_page: 16 << 20 });
        assert_eq!(place(5, None, 16 << 20).unwrap().initramfs, None);
    }

    #[test]
    fn pages_hold_what_is_loaded() {
        assert_eq!(page_that_holds(16 << 20), 16 << 20);
        assert_eq!(page_that_holds((16 << 20) + 1), 64 << 20);
        assert_eq!(u64::from(page_that_holds(MEMORY_MAX as u32)), MEMORY_MAX);
    }

    /// Whether a layout has its guarantees.
    fn holds(layout: &Layout, kernel: u32, initramfs: Option<u64>, memory: u32) -> bool {
        let tree_end = layout.tree.saturating_add(TREE_ROOM);
        let end = layout.initramfs.as_ref().map_or(tree_end, |range| range.end);
        let length = layout.initramfs.as_ref().map(|range| u64::from(range.end - range.start));
        layout.tree >= kernel
            && layout.initramfs.as_ref().is_none_or(|range| range.start >= tree_end)
            && length == initramfs
            && end <= memory
            && end <= layout.initial_page
    }

    proptest! {
        #[test]
        fn places_never_overlap(kernel: u32, initramfs in prop::option::of(any::<u64>()), memory in 16u32 << 20..=1 << 30) {
            if let Ok(layout) = place(kernel, initramfs, memory) {
                prop_assert!(holds(&layout, kernel, initramfs, memory));
            }
        }

        #[test]
        fn what_fits_is_placed(kernel in 0u32..8 << 20, initramfs in prop::option::of(0u64..6 << 20)) {
            let layout = place(kernel, initramfs, 16 << 20).unwrap();
            prop_assert!(holds(&layout, kernel, initramfs, 16 << 20));
        }
    }

    #[test]
    fn the_check_of_layouts_can_fail() {
        let good = || place(5 << 20, Some(1 << 20), 16 << 20).unwrap();
        let kept = |layout: &Layout| holds(layout, 5 << 20, Some(1 << 20), 16 << 20);
        assert!(kept(&good()));
        assert!(!kept(&Layout { tree: (5 << 20) - 4096, ..good() }));
        assert!(!kept(&Layout { tree: good().tree + 1, ..good() }));
        assert!(!kept(&Layout { initramfs: Some(15 << 20..(16 << 20) + 1), ..good() }));
        assert!(!kept(&Layout { initial_page: 4 << 20, ..good() }));
    }

    #[test]
    fn an_error_says_how_much_is_needed() {
        let error = place(15 << 20, Some(1 << 20), 16 << 20).unwrap_err().to_string();
        assert!(error.contains("need 16842752 bytes") && error.contains("has 16777216"), "{error}");
        assert!(place(0, Some(u64::MAX), 16 << 20).is_err());
        assert!(place(u32::MAX, None, 1 << 30).is_err());
    }
}
