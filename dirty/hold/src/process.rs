// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `/proc` says of a process. A field that cannot be read or understood is `None`, which its users take for "no".

use std::fs;

/// When the process with this pid started, in clock ticks since the boot. `None` if there is none, or a dead one.
pub(crate) fn start(pid: i32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    // The third field is the state, the 22nd is wanted.
    fields.nth(18)?.parse().ok()
}

/// The children of the process, of all its threads. (None where the kernel lacks CONFIG_PROC_CHILDREN.)
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// A line of `/proc/PID/status`, without its name.
pub(crate) fn status(pid: i32, name: &str) -> Option<String> {
    // The name of the process, before it, may be any bytes.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Whether two processes are in the same namespace of this kind. Doubt means no.
pub(crate) fn share_namespace(one: i32, other: i32, kind: &str) -> bool {
    let [one, other] = [one, other].map(|pid| fs::read_link(format!("/proc/{pid}/ns/{kind}")));
    matches!((one, other), (Ok(one), Ok(other)) if one == other)
}
