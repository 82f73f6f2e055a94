// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program written for soft-dirty (`c/client.c`), which knows which pages it wrote, gets the right answers; and
//! gets wrong ones where it should, so that it can tell.

mod common;

use common::{Shim, can_track, command, compile, run, text};

fn client(case: &str, shim: Shim) -> std::process::Output {
    let mut client = command(compile("client", &[]), shim);
    client.arg(case);
    run(client)
}

fn passes(case: &str) {
    if !can_track() {
        return;
    }
    let output = client(case, Shim::Present);
    assert!(output.status.success(), "{case}: {}", text(&output));
    assert!(text(&output).contains("is tracked by uffd-async"), "{case}: {}", text(&output));
}

#[test]
fn pages_touched_are_reported() {
    passes("basic");
}

#[test]
fn every_way_to_a_descriptor() {
    passes("descriptors");
}

/// The kernel alone would say that all is clean. (That soft-dirty pages are found, every other case asks as well.)
#[test]
fn the_pagemap_can_be_scanned() {
    passes("scan");
}

#[test]
fn threads() {
    passes("threads");
}

#[test]
fn fork() {
    passes("fork");
}

#[test]
fn forks_while_another_thread_is_busy() {
    passes("busy-forks");
}

#[test]
fn mappings_come_and_go() {
    passes("mappings");
}

#[test]
fn another_process() {
    passes("other");
}

#[test]
fn another_process_calls_execve() {
    passes("exec");
}

/// And a kernel's mark that is not the shim's own is ignored.
#[test]
fn memory_that_the_program_protects() {
    passes("userfaultfd");
}

#[test]
fn signal_handlers() {
    passes("signals");
}

#[test]
fn many_clears_leave_nothing_behind() {
    passes("many");
}

/// With no file of ours open nothing happens; a cancelled thread gets out of the shim.
#[test]
fn others_pass_through() {
    for shim in [Shim::Absent, Shim::Present] {
        let output = client("others", shim);
        assert!(output.status.success(), "{}", text(&output));
        assert!(!text(&output).contains("libdirty"), "{}", text(&output));
    }
}

/// A random walk over reads, writes and seeks, good and bad: all but bit 55 is as the kernel has it.
#[test]
fn all_else_is_the_kernels() {
    if !can_track() {
        return;
    }
    let fuzz = compile("fuzz", &[]);
    for seed in 1..=4 {
        let mut fuzz = command(&fuzz, Shim::Present);
        fuzz.args([&seed.to_string(), "20000"]);
        let output = run(fuzz);
        assert!(output.status.success(), "seed {seed}: {}", text(&output));
    }
}

/// As without the word, and said.
#[test]
fn a_module_that_is_not_there_is_not_used() {
    if !can_track() {
        return;
    }
    if std::path::Path::new("/dev/trapless_dirty").exists() {
        eprintln!("SKIPPED: the module is loaded");
        return;
    }
    let mut client = command(compile("client", &[]), Shim::Present);
    client.arg("basic").env("LIBDIRTY_SOFTDIRTY", "force,verbose,dbit");
    let output = run(client);
    assert!(output.status.success(), "{}", text(&output));
    for said in ["dbit is not used: ", "is tracked by uffd-async"] {
        assert!(text(&output).contains(said), "{}", text(&output));
    }
}

/// The negative control of the environment: this kernel alone gives no right answers.
#[test]
fn fails_without_the_shim() {
    let output = client("basic", Shim::Absent);
    if output.status.success() {
        eprintln!("SKIPPED: the kernel has soft-dirty itself");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("missed"), "{}", text(&output));
}

/// Where the kernel cannot track, a clear fails and everything reads dirty.
#[test]
fn fails_closed() {
    let output = client("refused", Shim::Present);
    assert!(output.status.success(), "{}", text(&output));
}
