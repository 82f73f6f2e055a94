// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines on standard output, and the sanitising of names for it.

use std::io::{self, Write};
use std::time::SystemTime;

/// Print a line at once. A closed pipe is an error like any other; see [`reader_went_away`].
///
/// # Errors
/// Those of `write(2)`.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written =
        out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    written.map_err(unwritable)
}

/// Print a line on standard error. That nobody can read it there is no reason to stop.
macro_rules! remark {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
pub(crate) use remark;

/// An error of standard output that says so, of the same kind.
pub fn unwritable(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write standard output: {error}"))
}

/// Whether the error is a closed pipe on standard output: that ends the command, and is not a failure.
pub fn reader_went_away(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// A name from the system (a file, a program) without characters that have a meaning for a terminal or XML.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' { '?' } else { c }).collect()
}

/// The last `longest` characters of a name: the end of a path is more specific than its beginning.
pub fn tail(name: &str, longest: usize) -> String {
    let length = name.chars().count();
    if length <= longest {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(length + 1 - longest.max(1))).collect()
}

/// 12,345,678.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 CPU`, `2 CPUs`.
pub fn number_of(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A time as `2026-01-31 23:59`, in UTC.
pub fn utc(time: SystemTime) -> String {
    let time = time::OffsetDateTime::from(time);
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    format!("{date} {hour:02}:{minute:02}")
}

/// Pages as MiB or GiB.
pub fn bytes(pages: u64) -> String {
    let bytes = pages.saturating_mul(libdirty::page_size() as u64);
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits() {
        let shown: Vec<_> = [0, 999, 1000, 1_234_567].into_iter().map(grouped).collect();
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn dates_are_those_of_date() {
        // date -u -d @SECONDS
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_868_800, "2000-03-01 00:00"),
            (1_709_164_800, "2024-02-29 00:00"),
            (1_767_225_599, "2025-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)), text);
        }
        assert_eq!([1, 2].map(|n| number_of(n, "CPU")), ["1 CPU", "2 CPUs"]);
    }

    #[test]
    fn keeps_the_end() {
        assert_eq!(["abc", "abcd"].map(|name| tail(name, 3)), ["abc", "…cd"]);
        assert_eq!(tail("abcd", 0), "…");
    }

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a?[2Jb?");
    }
}
