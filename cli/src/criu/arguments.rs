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

/// Criu's options whose value is the next word, if it is one that the user chooses, and so may be called as a command is.
const NAMED: [&str; 23] = [
    "action-script",
    "address",
    "cgroup-dump-controller",
    "cgroup-props",
    "cgroup-props-file",
    "cgroup-root",
    "config",
    "enable-fs",
    "ext-mount-map",
    "external",
    "freeze-cgroup",
    "images-dir",
    "inherit-fd",
    "irmap-scan-path",
    "join-ns",
    "libdir",
    "log-file",
    "lsm-profile",
    "pidfile",
    "prev-images-dir",
    "root",
    "skip-mnt",
    "work-dir",
];
/// The same of one letter each.
const NAMED_LETTERS: &str = "DJLMWor";

impl Purpose {
    /// By the first argument that is a command of criu's, and no option's value.
    pub(super) fn of(arguments: &[OsString]) -> Self {
        let purpose = |argument: &str| match argument {
            "dump" | "pre-dump" | "service" | "swrk" => Some(Purpose::Dump),
            "check" => Some(Purpose::Check),
            "restore" | "page-server" | "lazy-pages" | "dedup" | "cpuinfo" | "exec" => Some(Purpose::Other),
            _ => None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let word = word.to_string_lossy();
            if let Some(purpose) = purpose(&word) {
                return purpose;
            }
            if has_name_behind(&word) {
                words.next();
            }
        }
        Purpose::Other
    }
}

/// Whether the next word is this option's value, by the rules of getopt: a long option may be shortened, letters may
/// stand together, of which one that takes a value has the rest of the word.
fn has_name_behind(word: &str) -> bool {
    match (word.strip_prefix("--"), word.strip_prefix('-')) {
        (Some(""), _) => false,
        (Some(long), _) => NAMED.iter().any(|name| name.starts_with(long)),
        (None, Some(letters)) => letters
            .find(|letter| NAMED_LETTERS.contains(letter) || letter == 't')
            .is_some_and(|at| at + 1 == letters.len()),
        (None, None) => false,
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
            ("-D dump restore", Purpose::Other),
            ("-D dump -t 5 dump", Purpose::Dump),
            ("-Ddump restore", Purpose::Other),
            ("-vD dump restore", Purpose::Other),
            ("-vd dump -t 5", Purpose::Dump),
            ("--images-dir dump restore", Purpose::Other),
            ("--images-dir=dump restore", Purpose::Other),
            ("--imag dump restore", Purpose::Other),
            ("--log-file dump -o check restore", Purpose::Other),
            ("--track-mem dump", Purpose::Dump),
            ("-j -- dump", Purpose::Dump),
            ("-D", Purpose::Other),
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
