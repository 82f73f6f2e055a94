// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty verify` holds what works, and catches a back end with a deliberate mistake: make check-controls.

mod common;

use std::path::Path;
use std::process::Command;

/// The back end that a mistake is in, and the mistake; see dirty/tests/mutants.
const MISTAKES: [(&str, &str); 2] = [("mprotect", "libdirty-rearm"), ("mprotect", "libdirty-discard")];

fn verify(judge: &Path, back_end: &str, mistake: &str) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_trapless"))
        .args(["dirty", "verify", "--budget", "120", "--backend", back_end, "--judge"])
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
    for (back_end, mistake) in MISTAKES {
        let right = verify(&judge, back_end, "");
        let said = String::from_utf8_lossy(&right.stdout);
        assert!(right.status.success() && said.contains("Verified: no write was missed."), "{right:?}");
        let wrong = verify(&judge, back_end, mistake);
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
