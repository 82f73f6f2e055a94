// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. All errors that can be found without the machine are refused here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::layout;
use crate::virtio::block::Image;
use crate::virtio::network::Tap;

/// The size of a small page of the host.
const PAGE: u64 = 4096;

/// Boot a Linux kernel on KVM on an e500v2
#[derive(Debug, Parser)]
#[command(name = "trapless-power-vmm", version)]
pub struct Arguments {
    /// A vmlinux (32-bit big-endian ELF)
    #[arg(long)]
    pub kernel: PathBuf,
    /// Its initial root file system
    #[arg(long)]
    pub initramfs: Option<PathBuf>,
    /// Memory: 16M to 1G, whole MiB
    #[arg(long, default_value = "64M", value_parser = memory)]
    pub memory: u32,
    /// The kernel's command line; the console is the serial port, ttyS0
    #[arg(long, default_value = "console=ttyS0 panic=-1", value_parser = command_line)]
    pub append: String,
    /// Processors: 1 or 2
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=i64::from(layout::CPUS_MOST)))]
    pub cpus: u32,
    /// A disk, /dev/vda and so on: a file of whole sectors, written by this guest alone, or, with ",readonly" behind
    /// its name, by nobody
    #[arg(long, value_name = "FILE[,readonly]", value_parser = disk)]
    pub disk: Vec<Image>,
    /// A network card, eth0 and so on, connected to a tap of the host
    #[arg(long, value_name = "TAP", value_parser = Tap::new)]
    pub net: Vec<Tap>,
    /// What backs the memory: anonymous, hugetlb=SIZE (pages of that size), or devmem=ADDRESS (physical memory that
    /// the host's kernel does not use, see mem=)
    #[arg(long, default_value = "anonymous")]
    pub backing: Backing,
    /// Offer KVM's hypercalls, which turn on the guest's own paravirtualization
    #[arg(long)]
    pub paravirt: bool,
    /// Tell the guest's driver to register its pages for in-place translation
    #[arg(long)]
    pub driver: bool,
    /// At the end write KVM's statistics of this guest to this file, one per line
    #[arg(long)]
    pub statistics: Option<PathBuf>,
    /// Give KVM the layout of traced blocks in this file, a copy of a bt_layout, instead of splitting them
    #[arg(long)]
    pub bt_layout: Option<PathBuf>,
}

impl Arguments {
    /// Read the command line.
    ///
    /// # Errors
    /// It is wrong, or asks for help.
    pub fn read<I: Into<OsString> + Clone>(words: impl IntoIterator<Item = I>) -> Result<Self, clap::Error> {
        let arguments = Self::try_parse_from(words)?;
        let refuse = |what: &str| Err(Self::command().error(ErrorKind::ArgumentConflict, what));
        if arguments.disk.len() + arguments.net.len() > layout::VIRTIO_MOST {
            return refuse(&format!("there is room for {} disks and network cards", layout::VIRTIO_MOST));
        }
        Ok(arguments)
    }
}

/// What backs the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Small pages.
    Anonymous,
    /// Huge pages of this size.
    Hugetlb(u64),
    /// Physical memory from this address on.
    Devmem(u64),
}

impl FromStr for Backing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "anonymous" => Ok(Self::Anonymous),
            Some(("hugetlb", size)) => match number(size)? {
                size if size.is_power_of_two() && size > PAGE => Ok(Self::Hugetlb(size)),
                _ => Err(format!("{size} is not the size of a huge page")),
            },
            Some(("devmem", address)) => match number(address)? {
                at if at.is_multiple_of(PAGE) => Ok(Self::Devmem(at)),
                _ => Err(format!("{address} is not page-aligned")),
            },
            _ => Err("not anonymous, hugetlb=SIZE or devmem=ADDRESS".into()),
        }
    }
}

/// Parse a number: decimal, or hexadecimal after 0x, with an optional suffix K, M or G.
fn number(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let parsed = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let parsed = parsed.map_err(|error| format!("{text} is not a number: {error}"))?;
    parsed.checked_mul(scale).ok_or_else(|| format!("{text} is too large"))
}

fn disk(text: &str) -> Result<Image, String> {
    let (path, read_only) = match text.strip_suffix(",readonly") {
        Some(path) => (path, true),
        None => (text, false),
    };
    if path.is_empty() {
        return Err("it has no name".into());
    }
    Ok(Image { path: path.into(), read_only })
}

fn memory(text: &str) -> Result<u32, String> {
    let size = number(text)?;
    if !(layout::MEMORY_MIN..=layout::MEMORY_MAX).contains(&size) {
        return Err("the guest's memory must be 16M to 1G".into());
    }
    if !size.is_multiple_of(1 << 20) {
        return Err("the guest's memory must be whole MiB".into());
    }
    u32::try_from(size).map_err(|error| error.to_string())
}

fn command_line(text: &str) -> Result<String, String> {
    match text.len() {
        0..layout::COMMAND_LINE_SIZE => Ok(text.into()),
        length => Err(format!(
            "it has {length} bytes, and the kernel accepts less than {}",
            layout::COMMAND_LINE_SIZE
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Arguments, String> {
        Arguments::read([&["vmm", "--kernel", "k"], arguments].concat()).map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_arguments_have_defaults() {
        let arguments = parse(&[]).unwrap();
        assert_eq!((arguments.memory, arguments.backing), (64 << 20, Backing::Anonymous));
        assert!(!arguments.paravirt && !arguments.driver && arguments.initramfs.is_none());
        assert_eq!((arguments.cpus, arguments.disk.len(), arguments.net.len()), (1, 0, 0));
        assert!(Arguments::read(["vmm"]).unwrap_err().to_string().contains("--kernel"));
    }

    #[test]
    fn backings_are_distinguished() {
        let backing = |text| parse(&["--backing", text]).map(|arguments| arguments.backing);
        assert_eq!(backing("hugetlb=64M"), Ok(Backing::Hugetlb(64 << 20)));
        assert_eq!(backing("devmem=0x10000000"), Ok(Backing::Devmem(0x1000_0000)));
        assert_eq!(backing("devmem=256M"), Ok(Backing::Devmem(256 << 20)));
        for (wrong, why) in [
            ("", "not anonymous"),
            ("hugetlb", "not anonymous"),
            ("anonymous=1", "not anonymous"),
            ("hugetlb=", "is not a number"),
            ("hugetlb=3M", "not the size of a huge page"),
            ("hugetlb=4K", "not the size of a huge page"),
            ("hugetlb=0", "not the size of a huge page"),
            ("devmem=1", "not page-aligned"),
            ("devmem=-1", "is not a number"),
            ("devmem=0xffffffffffffffffG", "too large"),
        ] {
            let error = backing(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn disks_and_networks_are_named() {
        let two = parse(&["--disk", "/a,b", "--disk", "c,readonly", "--net", "tap0"]).unwrap();
        let images =
            [("/a,b", false), ("c", true)].map(|(path, read_only)| Image { path: path.into(), read_only });
        assert_eq!((two.disk, two.net), (images.into(), vec![Tap::new("tap0").unwrap()]));
        assert!(parse(&["--disk", ",readonly"]).unwrap_err().contains("it has no name"));
        assert!(parse(&["--net", "a/b"]).unwrap_err().contains("not the name of an interface"));
        assert!(parse(&["--disk", "d"].repeat(8)).is_ok());
        let many = [["--disk", "d"].repeat(8), vec!["--net", "t"]].concat();
        assert!(parse(&many).unwrap_err().contains("room for 8"));
    }

    #[test]
    fn a_guest_has_one_processor_or_two() {
        for mode in [&["--paravirt"][..], &["--driver"], &["--driver", "--bt-layout", "f"]] {
            assert_eq!(parse(&[&["--cpus", "2"], mode].concat()).map(|arguments| arguments.cpus), Ok(2));
        }
        for wrong in ["0", "3", "x"] {
            assert!(parse(&["--cpus", wrong]).is_err());
        }
    }

    #[test]
    fn memory_is_bounded() {
        let memory = |text| parse(&["--memory", text]).map(|arguments| arguments.memory);
        assert_eq!(memory("16M"), Ok(16 << 20));
        assert_eq!(memory("1G"), Ok(1 << 30));
        for (wrong, why) in [
            ("0", "16M to 1G"),
            ("16383K", "16M to 1G"),
            ("2G", "16M to 1G"),
            ("17000K", "whole MiB"),
            ("M", "is not a number"),
            ("64m", "is not a number"),
            ("99999999999999999999", "is not a number"),
        ] {
            let error = memory(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_too_long_command_line_is_refused() {
        let append = |length| parse(&["--append", &"x".repeat(length)]);
        assert!(append(layout::COMMAND_LINE_SIZE - 1).is_ok());
        assert!(append(layout::COMMAND_LINE_SIZE).unwrap_err().contains("accepts less than"));
    }
}
