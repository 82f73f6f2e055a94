// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. All errors that can be found without the machine are refused here.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;

use crate::layout;

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
        Arguments::try_parse_from([&["vmm", "--kernel", "k"], arguments].concat())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_arguments_have_defaults() {
        let arguments = parse(&[]).unwrap();
        assert_eq!((arguments.memory, arguments.backing), (64 << 20, Backing::Anonymous));
        assert!(!arguments.paravirt && !arguments.driver && arguments.initramfs.is_none());
        assert!(Arguments::try_parse_from(["vmm"]).unwrap_err().to_string().contains("--kernel"));
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
