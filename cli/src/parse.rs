// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of command-line options. What is refused here is a usage error: exit code 2.

use std::time::Duration;

use bytesize::ByteSize;
use libdirty::{BackendKind, page_size};

/// Seconds, with a fraction, from a millisecond to a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err("seconds must be from 0.001 to 86400".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A back end's name; `auto` is the same as no option.
pub fn backend(name: &str) -> Result<BackendKind, String> {
    name.parse()
}

/// Permissions of a file, in octal.
pub fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("permissions are an octal number from 0 to 777".into()),
    }
}

/// A size such as `1GiB`, in whole pages and at least 1,024 of them.
pub fn size(text: &str) -> Result<usize, String> {
    let size: ByteSize =
        text.parse().map_err(|_| "not a size; write for example 512MiB or 4GiB".to_owned())?;
    let bytes = usize::try_from(size.as_u64()).map_err(|_| "more than the address space".to_owned())?;
    let least = 1024 * page_size();
    if !(least..=1 << 44).contains(&bytes) {
        return Err(format!("sizes must be from {} to 16TiB", ByteSize::b(least as u64)));
    }
    Ok(bytes / page_size() * page_size())
}

/// The share of the pages that is written, as every n-th page.
pub fn density(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(density) if (0.001..=1.0).contains(&density) => Ok(density),
        _ => Err("a density is a number from 0.001 to 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_and_refuses() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(size("8MiB"), Ok(8 << 20));
        assert!(density("1").is_ok());
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(seconds(bad).is_err() && density(bad).is_err(), "{bad}");
        }
        for bad in ["", "1", "x", "99EiB", "-1GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
