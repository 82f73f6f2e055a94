// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stock criu's own probe for dirty tracking, by what its log says. How far each step of a dump gets depends on the
//! versions of criu and of the kernel, and stands in the README.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Shim, can_track, command, compile, run, text};

const YES: &str = "Dirty track supported on kernel";
const NO: &str = "Dirty tracking support is OFF";
const VERDICT: &str = "mem_dirty_track is supported";

/// What `criu check --feature mem_dirty_track` says, with a library preloaded or not.
fn probe(shim: Shim, aid: Option<&Path>) -> Option<String> {
    // What criu found about the kernel in an earlier run.
    let is_known = Path::new("/run/criu.kdat").exists();
    // SAFETY: takes nothing.
    if is_known || unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: criu would not probe: not root, or /run/criu.kdat exists");
        return None;
    }
    if Command::new("criu").arg("--version").output().is_err() {
        eprintln!("SKIPPED: criu is not installed");
        return None;
    }
    let mut criu = command("criu", shim);
    if let Some(aid) = aid {
        let preload = criu.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
        let mut preload = preload.unwrap_or_default().to_os_string();
        preload.push(":");
        preload.push(aid);
        criu.env("LD_PRELOAD", preload);
    }
    criu.args(["check", "--feature", "mem_dirty_track", "-v4"]);
    let said = text(&run(criu));
    let _ = std::fs::remove_file("/run/criu.kdat");
    Some(said)
}

/// One test, for criu keeps a file of its own in /run.
#[test]
fn criu_finds_dirty_tracking() {
    if !can_track() {
        return;
    }
    let Some(without) = probe(Shim::Absent, None) else { return };
    let with = probe(Shim::Present, None).expect("it ran a moment ago");
    assert!(with.contains(YES), "{with}");
    if !without.contains(NO) {
        eprintln!("SKIPPED: the kernel has soft-dirty itself");
        return;
    }
    assert!(!without.contains(YES), "{without}");

    // Past the vDSO, where criu 3.17 stops on new kernels, to its verdict.
    let aid = compile("vvar", &["-shared", "-fPIC"]);
    let without = probe(Shim::Absent, Some(&aid)).expect("it ran a moment ago");
    let with = probe(Shim::Present, Some(&aid)).expect("it ran a moment ago");
    if with.contains("Could not initialize kernel features detection") {
        eprintln!("SKIPPED: this criu stops on this kernel for another reason:\n{with}");
        return;
    }
    assert!(!without.contains(VERDICT), "{without}");
    assert!(with.contains(VERDICT), "{with}");
}
