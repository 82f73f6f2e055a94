// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is to be known of criu's arguments, which are criu's to understand: its command, and the process that is dumped.
//!
//! They are read by the rules of getopt, as criu reads them: options and other words in any order, a long option may be
//! shortened, letters may stand together, and what a value is called says nothing.

use std::borrow::Cow;
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
    /// By the first word that is a command of criu's.
    pub(super) fn of(arguments: &[OsString]) -> Self {
        let purpose = |word: Word| match word {
            Word::Plain(word) => match word.as_ref() {
                "dump" | "pre-dump" | "service" | "swrk" => Some(Purpose::Dump),
                "check" => Some(Purpose::Check),
                "restore" | "page-server" | "lazy-pages" | "dedup" | "cpuinfo" | "exec" => {
                    Some(Purpose::Other)
                }
                _ => None,
            },
            Word::Valued(..) => None,
        };
        words(arguments).into_iter().find_map(purpose).unwrap_or(Purpose::Other)
    }
}

/// The process whose tree is to be dumped, if the arguments name one: the last that they name.
pub(super) fn tree(arguments: &[OsString]) -> Option<i32> {
    // Shorter than "tre", it may be another option.
    let is_tree = |name: &str| name == "t" || (name.len() > 2 && "tree".starts_with(name));
    let named = words(arguments).into_iter().rev().find_map(|word| match word {
        Word::Valued(name, value) if is_tree(&name) => Some(value),
        _ => None,
    });
    named?.parse().ok().filter(|pid| *pid > 0)
}

/// An argument, or two.
enum Word<'a> {
    /// An option that takes a value, and the value.
    Valued(String, Cow<'a, str>),
    /// No option.
    Plain(Cow<'a, str>),
}

/// Those that take a value, which may be the next word.
const VALUED: [&str; 42] = [
    "action-script",
    "address",
    "cgroup-dump-controller",
    "cgroup-props",
    "cgroup-props-file",
    "cgroup-root",
    "cgroup-yard",
    "close",
    "config",
    "empty-ns",
    "enable-fs",
    "ext-mount-map",
    "external",
    "feature",
    "file-validation",
    "freeze-cgroup",
    "ghost-limit",
    "images-dir",
    "inherit-fd",
    "irmap-scan-path",
    "join-ns",
    "libdir",
    "log-file",
    "lsm-mount-context",
    "lsm-profile",
    "network-lock",
    "pidfile",
    "port",
    "pre-dump-mode",
    "prev-images-dir",
    "ps-socket",
    "root",
    "skip-mnt",
    "status-fd",
    "timeout",
    "tls-cacert",
    "tls-cacrl",
    "tls-cert",
    "tls-key",
    "tree",
    "veth-pair",
    "work-dir",
];
/// The one that takes none, and is how some of those begin.
const SWITCH: &str = "tls";
const VALUED_LETTERS: &str = "DJLMWort";
/// Letters whose value, if there is one, is the rest of the word.
const ATTACHED_LETTERS: &str = "vx";

fn words(arguments: &[OsString]) -> Vec<Word<'_>> {
    let mut found = Vec::new();
    let mut rest = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(word) = rest.next() {
        if word == "--" {
            found.extend(rest.by_ref().map(Word::Plain));
        } else if let Some(long) = word.strip_prefix("--") {
            if let Some((name, value)) = long.split_once('=') {
                found.push(Word::Valued(name.to_owned(), Cow::Owned(value.to_owned())));
            } else if long != SWITCH && VALUED.iter().any(|name| name.starts_with(long)) {
                found.extend(rest.next().map(|value| Word::Valued(long.to_owned(), value)));
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            let with_value =
                |letter: char| VALUED_LETTERS.contains(letter) || ATTACHED_LETTERS.contains(letter);
            let Some(at) = letters.find(with_value) else { continue };
            let (name, value) = (&letters[at..=at], &letters[at + 1..]);
            if ATTACHED_LETTERS.contains(name) {
                continue;
            }
            let value = if value.is_empty() { rest.next() } else { Some(Cow::Owned(value.to_owned())) };
            found.extend(value.map(|value| Word::Valued(name.to_owned(), value)));
        } else {
            found.push(Word::Plain(word));
        }
    }
    found
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
            ("-jD dump restore", Purpose::Other),
            ("-vD dump -t 5", Purpose::Dump), // D is of the verbosity
            ("-jd dump -t 5", Purpose::Dump),
            ("--tls-cert dump restore", Purpose::Other),
            ("--tls dump -t 5", Purpose::Dump),
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
            ("dump -jt 5", Some(5)),
            ("dump -jt5", Some(5)),
            ("dump --tre 5", Some(5)),
            ("dump --tre=5", Some(5)),
            ("dump -t 4 -t 5", Some(5)),
            ("dump -t 4 --tree x", None),
            ("dump -D -t 5", None),
            ("dump -o t -t 5", Some(5)),
            ("dump --timeout 5", None),
            ("dump --track-mem 5", None),
            ("dump -", None),
            ("dump -\u{e4}t 5", Some(5)),
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
