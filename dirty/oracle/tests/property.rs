// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generated programs against every back end that works here.
//!
//! `PROPTEST_CASES` sets the number of programs for each back end and process (a soak: 100,000). A program that once
//! failed is kept as `tests/sequences/NAME.json`, a file that says what was wrong in its name; all of them run first.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{program, setups};
use dirty_oracle::property::{Search, search};
use dirty_oracle::run::{Order, What};
use dirty_oracle::sequence::Sequence;

#[test]
fn programs_that_once_failed() {
    let mut kept: Vec<_> = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/sequences")
        .read_dir()
        .expect("the directory is there")
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    kept.sort();
    for path in kept {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let sequence: Sequence = serde_json::from_str(&text).expect("it holds a sequence");
        for setup in setups(0.0) {
            let order = Order::new(setup.clone(), What::Sequence(sequence.clone()));
            let verdict = order.spawn(program(), Duration::from_secs(60)).expect("the oracle starts");
            let (backend, target) = (&setup.subject, setup.target.name());
            assert!(verdict.is_good(), "{backend} {target} {}: {verdict:?}", path.display());
        }
    }
}

#[test]
fn any_program() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200);
    for setup in setups(0.0) {
        match search(program(), &setup, cases, 5000, None).expect("the search works") {
            Search::Passed => {}
            Search::Skipped(why) => println!("{} {}: {why}", setup.subject, setup.target.name()),
            Search::Found(sequence, verdict) => panic!(
                "{} {}: {verdict:?}\nkeep it in tests/sequences:\n{}",
                setup.subject,
                setup.target.name(),
                serde_json::to_string(&sequence).expect("it is JSON")
            ),
        }
    }
}

/// As the soak calls it.
#[test]
fn the_command_takes_a_seed() {
    let ran = std::process::Command::new(program())
        .args(["property", "--cases", "2", "--seed", "7"])
        .output()
        .expect("the oracle starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// A number of seconds or of programs with which nothing would be tried.
#[test]
fn nothing_is_not_tried() {
    for wrong in [
        &["attach", "1", "--seconds", "nan"][..],
        &["attach", "1", "--seconds=-1"],
        &["--seconds", "inf"],
        &["property", "--cases", "0"],
    ] {
        let refused = std::process::Command::new(program()).args(wrong).output().expect("the oracle starts");
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
}
