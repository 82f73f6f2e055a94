// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stock Boehm collector (Debian's `libgc1`) in incremental mode, on dirty bits from the shim.
//!
//! What the collector says about itself (GC_PRINT_STATS) shows that it takes them from /proc; that all that is
//! reachable stays shows that they are right.

mod common;

use common::{Shim, can_track, command, compile, run, text};

const FROM_PROC: &str = "Using soft-dirty bit feature";

fn collector(threads: u32, shim: Shim) -> Option<std::process::Output> {
    if !std::path::Path::new("/usr/include/gc/gc.h").exists() {
        eprintln!("SKIPPED: libgc-dev is not installed");
        return None;
    }
    let mut collector = command(compile("collector", &["-lgc"]), shim);
    collector.args([&threads.to_string(), "100000"]).env("GC_PRINT_STATS", "1");
    Some(run(collector))
}

#[test]
fn dirty_bits_from_proc_keep_what_is_reachable() {
    if !can_track() {
        return;
    }
    for threads in [1, 4] {
        let Some(output) = collector(threads, Shim::Present) else { return };
        let said = text(&output);
        assert!(output.status.success(), "{threads} threads: {}", &said[said.len().saturating_sub(2000)..]);
        assert!(said.contains(FROM_PROC), "{threads} threads: it does not read /proc");
        assert!(said.contains("incremental 1") && said.contains("wrong 0"));
    }
}

#[test]
fn without_the_shim_there_are_none() {
    let Some(output) = collector(1, Shim::Absent) else { return };
    let said = text(&output);
    assert!(output.status.success());
    if said.contains(FROM_PROC) {
        eprintln!("SKIPPED: the kernel has soft-dirty itself");
        return;
    }
    assert!(said.contains("Soft-dirty bit is not supported by kernel"));
}
