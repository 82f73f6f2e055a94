// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Xen and the kernel said meanwhile: complaints, told apart from what the host says at any time.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Serialize;

use super::super::host::Host;
use super::super::linux::Log;
use super::super::platform::Xen;
use crate::output::printable;

/// Parts of lines in which Xen or Linux says that itself is broken.
const BROKEN: [&str; 10] = [
    "BUG",
    "WARNING: ",
    "Xen WARN",
    "Oops",
    "Assertion",
    "Call Trace",
    "Xen call trace",
    "general protection",
    "stack corrupted",
    "multicall(s) failed",
];

/// Complaints since the beginning.
#[derive(Debug, Default, Serialize)]
pub struct Logs {
    pub kernel: Vec<String>,
    pub xen: Vec<String>,
    pub unread: Vec<Unread>,
}

/// A log that could not be read, and why.
#[derive(Debug, Serialize)]
pub struct Unread {
    pub log: &'static str,
    pub why: String,
}

/// Both logs from a moment on.
pub struct Since {
    kernel: Option<Log>,
    xen: Result<Vec<String>, String>,
}

impl Since {
    pub fn now(host: &Host, xen: &Xen) -> Self {
        Since { kernel: Log::from_now(&host.path("/dev/kmsg")), xen: console(host, xen) }
    }

    /// What was said since.
    pub fn complaints(mut self, host: &Host, xen: &Xen) -> Logs {
        let mut found = Logs::default();
        match &mut self.kernel {
            None => {
                let why = "/dev/kmsg cannot be read".to_owned();
                found.unread.push(Unread { log: "the kernel's log", why });
            }
            Some(log) => found.kernel = log.lines().into_iter().filter(|line| is_complaint(line)).collect(),
        }
        match (self.xen, console(host, xen)) {
            (Ok(before), Ok(now)) => {
                found.xen = added(&before, &now).iter().filter(|line| is_complaint(line)).cloned().collect();
            }
            (Err(why), _) | (_, Err(why)) => found.unread.push(Unread { log: "Xen's log", why }),
        }
        found
    }
}

fn is_complaint(line: &str) -> bool {
    BROKEN.iter().any(|broken| line.contains(broken))
}

/// The lines after the last one of before: the ring loses its oldest lines. If that one is lost, all.
fn added<'a>(before: &[String], now: &'a [String]) -> &'a [String] {
    let known = &before[before.len().saturating_sub(3)..];
    let at = if known.is_empty() { None } else { now.windows(known.len()).rposition(|lines| lines == known) };
    &now[at.map_or(0, |at| at + known.len())..]
}

/// Xen's log, by Xen's own tool.
fn console(host: &Host, xen: &Xen) -> Result<Vec<String>, String> {
    let own = format!("/usr/lib/xen-{}/bin/xl", xen.release);
    let programs = [own.as_str(), "/usr/sbin/xl", "/sbin/xl"];
    let program: Option<PathBuf> = programs.iter().map(|file| host.path(file)).find(|file| file.is_file());
    let program = program.ok_or("there is no xl")?;
    let output = Command::new(&program).arg("dmesg").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("xl dmesg: {}", printable(why.lines().next().unwrap_or("it gave no reason"))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(printable).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn only_new_lines_of_a_ring_are_looked_at() {
        assert_eq!(added(&lines("a b c d"), &lines("a b c d e f")), lines("e f"));
        assert_eq!(added(&lines("a b c d"), &lines("b c d e")), lines("e"));
        assert_eq!(added(&lines("a b c d"), &lines("x y")), lines("x y"), "all before is lost");
        assert_eq!(added(&[], &lines("x y")), lines("x y"));
        assert!(added(&lines("a b"), &lines("a b")).is_empty());
    }

    #[test]
    fn complaints_are_told_from_news() {
        for line in
            ["(XEN) Xen BUG at mm.c:1", "WARNING: CPU: 0 PID: 1 at a.c", "1 of 2 multicall(s) failed: cpu 0"]
        {
            assert!(is_complaint(line), "{line}");
        }
        for line in ["(XEN) mm.c:1: d0v0 Bad L1 flags 800000", "usb 1-1: device descriptor read, error -71"] {
            assert!(!is_complaint(line), "{line}");
        }
    }
}
