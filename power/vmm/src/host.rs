// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of the host that the guest gets: the frequency of the timebase, which KVM does not virtualize, and a
//! seed for random numbers.

use std::fs::{self, File};
use std::io::Read;

use anyhow::{Context, Result};

const CPUINFO: &str = "/proc/cpuinfo";
const RANDOM: &str = "/dev/urandom";

/// Ticks of the timebase a second.
///
/// # Errors
/// The host's kernel does not report it.
pub fn timebase() -> Result<u32> {
    let text =
        fs::read_to_string(CPUINFO).with_context(|| format!("cannot read {CPUINFO}; is /proc mounted?"))?;
    timebase_in(&text).with_context(|| format!("{CPUINFO} has no timebase; is this a PowerPC?"))
}

fn timebase_in(cpuinfo: &str) -> Option<u32> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(name, _)| name.trim() == "timebase").find_map(|(_, value)| value.trim().parse().ok())
}

/// A seed for the guest's random numbers.
///
/// # Errors
/// The host has none.
pub fn seed() -> Result<[u8; 32]> {
    let mut seed = [0; 32];
    let opened = File::open(RANDOM).and_then(|mut file| file.read_exact(&mut seed));
    opened.with_context(|| format!("cannot read {RANDOM}; is /dev mounted?"))?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timebase_is_found() {
        let text =
            "processor\t: 0\nclock\t\t: 400.000000MHz\n\ntimebase\t: 400000000\nplatform\t: QEMU e500\n";
        assert_eq!(timebase_in(text), Some(400_000_000));
        assert_eq!(timebase_in("timebase\t: fast\n"), None);
        assert_eq!(timebase_in(""), None);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(seed().unwrap(), seed().unwrap());
    }
}
