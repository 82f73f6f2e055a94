// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device tree: the board that Linux knows as `fsl,qemu-e500`, without PCI. tests/guest.dts is the same in
//! source form; a test compares the two.

use std::ops::Range;

use vm_fdt::{Error, FdtWriter};

use crate::layout;

/// The interrupt controller's handle.
const MPIC_PHANDLE: u32 = 1;
/// An interrupt that is active while its line is high.
const LEVEL_HIGH: u32 = 2;
const CACHE_SIZE: u32 = 32 << 10;
const CACHE_LINE: u32 = 32;

/// The guest's hypercalls.
#[derive(Debug)]
pub struct Hypercall {
    /// The instructions that make one.
    pub instructions: [u32; 4],
    /// Whether it may make one when it is idle.
    pub idle: bool,
}

/// What differs between guests.
#[derive(Debug)]
pub struct Description<'a> {
    /// The size of its memory, from 0 on.
    pub memory: u32,
    /// The address range of the initramfs.
    pub initramfs: Option<Range<u32>>,
    /// The kernel's command line.
    pub command_line: &'a str,
    /// Ticks a second.
    pub timebase: u32,
    /// For random numbers.
    pub seed: &'a [u8],
    /// For paravirtualization, if offered.
    pub hypercall: Option<Hypercall>,
    /// Whether the guest's driver is to register its pages.
    pub driver: bool,
    /// How many virtio devices it has.
    pub virtio: usize,
    /// How many processors it has.
    pub cpus: u32,
}

/// Write a device tree.
///
/// # Errors
/// The command line has a zero in it.
pub fn build(guest: &Description<'_>) -> Result<Vec<u8>, Error> {
    let mut tree = FdtWriter::new()?;
    let root = tree.begin_node("")?;
    tree.property_string("model", "trapless guest")?;
    tree.property_string("compatible", "fsl,qemu-e500")?;
    tree.property_u32("#address-cells", 2)?;
    tree.property_u32("#size-cells", 2)?;
    chosen(&mut tree, guest)?;
    let aliases = tree.begin_node("aliases")?;
    tree.property_string("serial0", &serial_path())?;
    tree.end_node(aliases)?;
    let memory = tree.begin_node("memory@0")?;
    tree.property_string("device_type", "memory")?;
    tree.property_array_u32("reg", &[0, 0, 0, guest.memory])?;
    tree.end_node(memory)?;
    processors(&mut tree, guest)?;
    soc(&mut tree, guest)?;
    if let Some(hypercall) = &guest.hypercall {
        let hypervisor = tree.begin_node("hypervisor")?;
        tree.property_string("compatible", "linux,kvm")?;
        tree.property_array_u32("hcall-instructions", &hypercall.instructions)?;
        if hypercall.idle {
            tree.property_null("has-idle")?;
        }
        tree.end_node(hypervisor)?;
    }
    if guest.driver {
        let driver = tree.begin_node("trapless")?;
        tree.property_string("compatible", "trapless,in-place-translation")?;
        tree.end_node(driver)?;
    }
    tree.end_node(root)?;
    tree.finish()
}

fn serial_path() -> String {
    format!("/soc@{:x}/serial@{:x}", layout::SOC, layout::SERIAL)
}

fn chosen(tree: &mut FdtWriter, guest: &Description<'_>) -> Result<(), Error> {
    let chosen = tree.begin_node("chosen")?;
    tree.property_string("bootargs", guest.command_line)?;
    tree.property_string("stdout-path", &serial_path())?;
    tree.property("rng-seed", guest.seed)?;
    if let Some(initramfs) = &guest.initramfs {
        tree.property_u32("linux,initrd-start", initramfs.start)?;
        tree.property_u32("linux,initrd-end", initramfs.end)?;
    }
    tree.end_node(chosen)
}

fn processors(tree: &mut FdtWriter, guest: &Description<'_>) -> Result<(), Error> {
    let cpus = tree.begin_node("cpus")?;
    tree.property_u32("#address-cells", 1)?;
    tree.property_u32("#size-cells", 0)?;
    for number in 0..guest.cpus {
        let cpu = tree.begin_node(&format!("PowerPC,8544@{number}"))?;
        tree.property_string("device_type", "cpu")?;
        tree.property_u32("reg", number)?;
        if number == 0 {
            tree.property_string("status", "okay")?;
        } else {
            tree.property_string("status", "disabled")?;
            tree.property_string("enable-method", "spin-table")?;
            let entry = layout::SOC + layout::SPIN + number * layout::SPIN_ENTRY;
            tree.property_u64("cpu-release-addr", entry.into())?;
        }
        for cache in ["i-cache", "d-cache"] {
            tree.property_u32(&format!("{cache}-size"), CACHE_SIZE)?;
            tree.property_u32(&format!("{cache}-line-size"), CACHE_LINE)?;
        }
        tree.property_u32("timebase-frequency", guest.timebase)?;
        // The guest does not depend on these two; the kernel prints them, and warns if they are missing.
        tree.property_u32("clock-frequency", guest.timebase)?;
        tree.property_u32("bus-frequency", guest.timebase)?;
        tree.end_node(cpu)?;
    }
    tree.end_node(cpus)
}

fn soc(tree: &mut FdtWriter, guest: &Description<'_>) -> Result<(), Error> {
    let clock = guest.timebase;
    let soc = tree.begin_node(&format!("soc@{:x}", layout::SOC))?;
    tree.property_string("device_type", "soc")?;
    tree.property_string_list("compatible", vec!["fsl,mpc8544-immr".into(), "simple-bus".into()])?;
    tree.property_u32("#address-cells", 1)?;
    tree.property_u32("#size-cells", 1)?;
    tree.property_array_u32("ranges", &[0, 0, layout::SOC, layout::SOC_SIZE])?;
    tree.property_u32("bus-frequency", clock)?;

    let serial = tree.begin_node(&format!("serial@{:x}", layout::SERIAL))?;
    tree.property_string("device_type", "serial")?;
    tree.property_string_list("compatible", vec!["ns16550a".into(), "ns16550".into()])?;
    tree.property_array_u32("reg", &[layout::SERIAL, layout::SERIAL_SIZE])?;
    tree.property_u32("cell-index", 0)?;
    tree.property_u32("clock-frequency", clock)?;
    tree.property_u32("interrupt-parent", MPIC_PHANDLE)?;
    tree.property_array_u32("interrupts", &[layout::SERIAL_IRQ, LEVEL_HIGH])?;
    tree.end_node(serial)?;

    let mpic = tree.begin_node(&format!("pic@{:x}", layout::MPIC))?;
    tree.property_string("device_type", "open-pic")?;
    tree.property_string("compatible", "fsl,mpic")?;
    tree.property_array_u32("reg", &[layout::MPIC, layout::MPIC_SIZE])?;
    tree.property_null("interrupt-controller")?;
    tree.property_u32("#address-cells", 0)?;
    tree.property_u32("#interrupt-cells", 2)?;
    tree.property_phandle(MPIC_PHANDLE)?;
    tree.end_node(mpic)?;

    for number in 0..guest.virtio as u32 {
        let address = layout::VIRTIO + number * layout::VIRTIO_STRIDE;
        let virtio = tree.begin_node(&format!("virtio@{address:x}"))?;
        tree.property_string("compatible", "virtio,mmio")?;
        tree.property_array_u32("reg", &[address, layout::VIRTIO_SIZE])?;
        tree.property_u32("interrupt-parent", MPIC_PHANDLE)?;
        tree.property_array_u32("interrupts", &[layout::VIRTIO_IRQ + number, LEVEL_HIGH])?;
        tree.end_node(virtio)?;
    }

    let guts = tree.begin_node(&format!("global-utilities@{:x}", layout::GUTS))?;
    tree.property_string("compatible", "fsl,mpc8544-guts")?;
    tree.property_array_u32("reg", &[layout::GUTS, layout::GUTS_SIZE])?;
    tree.property_null("fsl,has-rstcr")?;
    tree.end_node(guts)?;
    tree.end_node(soc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest.dts");

    /// All options set.
    fn all() -> Description<'static> {
        Description {
            memory: 64 << 20,
            initramfs: Some(0x90_0000..0x91_2345),
            command_line: "console=ttyS0 panic=-1",
            timebase: 400_000_000,
            seed: &[0xaa; 4],
            hypercall: Some(Hypercall {
                instructions: [0x3c00_4b56, 0x6000_4d21, 0x4400_0002, 0x6000_0000],
                idle: true,
            }),
            driver: true,
            virtio: 2,
            cpus: 2,
        }
    }

    fn dtc(arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut dtc = Command::new("dtc")
            .args(["-q", "-s"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("dtc is installed");
        dtc.stdin.take().unwrap().write_all(input).unwrap();
        let output = dtc.wait_with_output().unwrap();
        assert!(output.status.success());
        output.stdout
    }

    /// Sorted, so that the order in the tree does not matter.
    fn decompiled(blob: &[u8]) -> String {
        String::from_utf8(dtc(&["-I", "dtb", "-O", "dts"], blob)).unwrap()
    }

    fn source() -> String {
        decompiled(&dtc(&["-I", "dts", "-O", "dtb", SOURCE], b""))
    }

    #[test]
    fn dtc_reads_what_the_source_says() {
        assert_eq!(decompiled(&build(&all()).unwrap()), source());
    }

    #[test]
    fn each_option_makes_its_difference() {
        let source = source();
        let lost = |guest: Description<'_>| {
            let text = decompiled(&build(&guest).unwrap());
            let gone = source.lines().filter(|line| !text.contains(line.trim()));
            gone.map(|line| line.trim().split([' ', ';']).next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(lost(all()).is_empty());
        assert_eq!(lost(Description { driver: false, ..all() }), ["trapless", "compatible"]);
        assert_eq!(
            lost(Description { initramfs: None, ..all() }),
            ["linux,initrd-end", "linux,initrd-start"]
        );
        assert_eq!(lost(Description { memory: 32 << 20, ..all() }), ["reg"]);
        assert_eq!(lost(Description { command_line: "", ..all() }), ["bootargs"]);
        let one = ["PowerPC,8544@1", "cpu-release-addr", "enable-method", "reg", "status"];
        assert_eq!(lost(Description { cpus: 1, ..all() }), one);
        let one = ["virtio@81000", "interrupts", "reg"];
        assert_eq!(lost(Description { virtio: 1, ..all() }), one);
        let no_calls = Description { hypercall: None, ..all() };
        assert_eq!(lost(no_calls), ["hypervisor", "compatible", "has-idle", "hcall-instructions"]);
    }

    #[test]
    fn the_longest_fits_its_room() {
        let command_line = "x".repeat(layout::COMMAND_LINE_SIZE - 1);
        let most = Description { virtio: layout::VIRTIO_MOST, cpus: layout::CPUS_MOST, ..all() };
        let tree = build(&Description { command_line: &command_line, seed: &[0; 32], ..most }).unwrap();
        assert!(tree.len() < layout::TREE_ROOM as usize);
    }
}
