// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty verify` holds what works, and catches a back end with a deliberate mistake: make check-controls. Its judge ends
//! with it, however it ends.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::Tool;
use common::testing::program;

/// Mistakes of this back end; see dirty/tests/mutants.
const BACK_END: &str = "mprotect";
const MISTAKES: [&str; 2] = ["libdirty-rearm", "libdirty-discard"];

fn verify(judge: &Path, mistake: &str) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_trapless"))
        .args(["dirty", "verify", "--budget", "120", "--backend", BACK_END, "--judge"])
        .arg(judge)
        .env("DIRTY_MUTANT", mistake)
        .output()
        .unwrap()
}

#[test]
fn a_back_end_with_a_mistake_is_not_verified() {
    let Some(mutants) = std::env::var_os("DIRTY_MUTANTS") else {
        println!("SKIPPED: DIRTY_MUTANTS names no folder: make check-controls");
        return;
    };
    let judge = Path::new(&mutants).join("dirty-conformance");
    let right = verify(&judge, "");
    let said = String::from_utf8_lossy(&right.stdout);
    assert!(right.status.success() && said.contains("Verified: no write was missed."), "{right:?}");
    for mistake in MISTAKES {
        let wrong = verify(&judge, mistake);
        let said = String::from_utf8_lossy(&wrong.stdout);
        assert_eq!(wrong.status.code(), Some(1), "{mistake}: {said}");
        assert!(said.contains("FAILED") && said.contains("NOT verified"), "{mistake}: {said}");
    }
}

#[test]
fn without_a_judge_nothing_is_verified() {
    common::assert_refuses(
        &common::run(&["dirty", "verify", "--judge", "/no/such/judge"]),
        1,
        "cannot start /no/such/judge",
    );
}

/// `dirty verify` with a judge that has held one case of nine and sleeps: the tool, and the judge's process.
fn with_a_judge_that_sleeps(folder: &Path) -> (Tool, PathBuf) {
    let judge = folder.join("judge");
    let script = "#!/bin/sh
[ \"$1\" = --version ] && echo 'judge 9' && exit
echo 1..9; echo 'ok 1 - a'; echo $$ >\"$0.new\"; mv \"$0.new\" \"$0.pid\"; exec sleep 300
";
    program(&judge, script);
    let tool = Tool::start(&["dirty", "verify", "--backend", "mprotect", "--judge", judge.to_str().unwrap()]);
    let since = Instant::now();
    let pid = loop {
        match std::fs::read_to_string(folder.join("judge.pid")) {
            Ok(pid) => break pid,
            Err(error) => assert!(since.elapsed() < Duration::from_secs(30), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    (tool, Path::new("/proc").join(pid.trim()).join("stat"))
}

fn wait_for_its_end(judge: &Path) {
    let since = Instant::now();
    // Where nobody waits for it, it stays as a zombie.
    while std::fs::read_to_string(judge).is_ok_and(|state| !state.contains(") Z ")) {
        assert!(since.elapsed() < Duration::from_secs(30), "the judge runs on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_the_judge_and_the_report_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tool, judge) = with_a_judge_that_sleeps(folder.path());
    tool.signal(libc::SIGINT);
    let mut said = String::new();
    loop {
        match tool.line() {
            line if line.is_empty() => break,
            line => said.push_str(&line),
        }
    }
    assert_eq!(tool.end(), (Some(1), String::new()), "{said}");
    assert!(said.contains("1 of 9 cases held") && said.contains("8 not reached"), "{said}");
    assert!(
        said.contains("judge (judge 9)") && said.contains("Stopped by a signal: not finished."),
        "{said}"
    );
    wait_for_its_end(&judge);
}

#[test]
fn the_judge_does_not_outlive_what_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let (tool, judge) = with_a_judge_that_sleeps(folder.path());
    tool.signal(libc::SIGKILL);
    tool.end();
    wait_for_its_end(&judge);
}
