// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is to be known of criu's arguments, which are criu's to understand: its command, and the process that is dumped.

use std::ffi::OsString;

/// What criu is run for, as far as dirty pages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It will read which pages are dirty, or be asked to by others.
    Dump,
    /// It will look whether that can be read.
    Check,
    /// Neither.
    Other,
}

impl Purpose {
    /// By the first argument that is a command of criu's.
    pub(super) fn of(arguments: &[OsString]) -> Self {
        let purpose = |argument: &OsString| match argument.to_str()? {
            "dump" | "pre-dump" | "service" | "swrk" => Some(Purpose::Dump),
            "check" => Some(Purpose::Check),
            "restore" | "page-server" | "lazy-pages" | "dedup" | "cpuinfo" | "exec" => Some(Purpose::Other),
            _ => None,
        };
        arguments.iter().find_map(purpose).unwrap_or(Purpose::Other)
    }
}

/// The process whose tree is to be dumped, if the arguments name one: `-t PID`, `-tPID`, `--tree PID`, `--tree=PID`.
pub(super) fn tree(arguments: &[OsString]) -> Option<i32> {
    let mut words = arguments.iter().filter_map(|argument| argument.to_str());
    while let Some(word) = words.next() {
        let value = match word {
            "-t" | "--tree" => words.next()?,
            "--" => return None,
            _ => match word.strip_prefix("--tree=").or_else(|| word.strip_prefix("-t")) {
                Some(value) => value,
                None => continue,
            },
        };
        if let Some(pid) = value.parse().ok().filter(|pid| *pid > 0) {
            return Some(pid);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn what_criu_is_run_for() {
        for (line, purpose) in [
            ("pre-dump -t 5", Purpose::Dump),
            ("-v4 dump --tree 5 -D restore", Purpose::Dump),
            ("swrk 3", Purpose::Dump),
            ("check --feature mem_dirty_track", Purpose::Check),
            ("restore -D dump", Purpose::Other),
            ("--version", Purpose::Other),
            ("", Purpose::Other),
        ] {
            assert_eq!(Purpose::of(&words(line)), purpose, "{line}");
        }
    }

    #[test]
    fn the_process_is_found() {
        for (line, pid) in [
            ("dump -t 5 -D x", Some(5)),
            ("dump -t5", Some(5)),
            ("dump --track-mem --tree 5", Some(5)),
            ("dump --tree=5", Some(5)),
            ("dump --tcp-established -t 5", Some(5)),
            ("dump -t", None),
            ("dump -t x", None),
            ("dump -t -5", None),
            ("dump -- -t 5", None),
            ("swrk 3", None),
        ] {
            assert_eq!(tree(&words(line)), pid, "{line}");
        }
    }
}
