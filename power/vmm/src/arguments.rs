// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked for. Everything that can be known to be wrong without the machine is refused here.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;

use crate::layout;

/// Of a small page of the host.
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
    /// What the memory is made of: anonymous, hugetlb=SIZE (pages of that size), or devmem=ADDRESS (physical memory
    /// that the host's kernel leaves alone, see mem=)
    #[arg(long, default_value = "anonymous")]
    pub backing: Backing,
    /// Offer KVM's hypercalls, with which the guest's own paravirtualization turns on
    #[arg(long)]
    pub paravirt: bool,
    /// Tell the guest's driver to register its pages for in-place translation
    #[arg(long)]
    pub driver: bool,
    /// At the end write KVM's statistics of this guest, a line each, to this file
    #[arg(long)]
    pub statistics: Option<PathBuf>,
    /// Give KVM the layout of traced blocks in this file, as its bt_layout was read, instead of splitting them
    #[arg(long)]
    pub bt_layout: Option<PathBuf>,
}

/// What the guest's memory is made of.
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
                _ => Err(format!("{size} is no size of a huge page")),
            },
            Some(("devmem", address)) => match number(address)? {
                at if at.is_multiple_of(PAGE) => Ok(Self::Devmem(at)),
                _ => Err(format!("{address} is not at a page")),
            },
            _ => Err("neither anonymous, hugetlb=SIZE nor devmem=ADDRESS".into()),
        }
    }
}

/// A number, decimal or after 0x hexadecimal, maybe in K, M or G.
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
    let parsed = parsed.map_err(|error| format!("{text} is no number: {error}"))?;
    parsed.checked_mul(scale).ok_or_else(|| format!("{text} is too large"))
}

fn memory(text: &str) -> Result<u32, String> {
    let size = number(text)?;
    if !(layout::MEMORY_MIN..=layout::MEMORY_MAX).contains(&size) {
        return Err("the guest's memory is 16M to 1G".into());
    }
    if !size.is_multiple_of(1 << 20) {
        return Err("the guest's memory is whole MiB".into());
    }
    u32::try_from(size).map_err(|error| error.to_string())
}

fn command_line(text: &str) -> Result<String, String> {
    match text.len() {
        0..layout::COMMAND_LINE_SIZE => Ok(text.into()),
        length => {
            Err(format!("{length} bytes, and the kernel takes less than {}", layout::COMMAND_LINE_SIZE))
        }
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
    fn what_is_left_out_has_defaults() {
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
            ("", "neither anonymous"),
            ("hugetlb", "neither anonymous"),
            ("anonymous=1", "neither anonymous"),
            ("hugetlb=", "no number"),
            ("hugetlb=3M", "no size of a huge page"),
            ("hugetlb=4K", "no size of a huge page"),
            ("hugetlb=0", "no size of a huge page"),
            ("devmem=1", "not at a page"),
            ("devmem=-1", "no number"),
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
            ("M", "no number"),
            ("64m", "no number"),
            ("99999999999999999999", "no number"),
        ] {
            let error = memory(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_command_line_is_not_cut() {
        let append = |length| parse(&["--append", &"x".repeat(length)]);
        assert!(append(layout::COMMAND_LINE_SIZE - 1).is_ok());
        assert!(append(layout::COMMAND_LINE_SIZE).unwrap_err().contains("takes less than"));
    }
}
