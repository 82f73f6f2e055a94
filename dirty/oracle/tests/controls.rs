// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The controls: back ends that make a mistake on purpose, which the scenarios made for it, and the search among
//! generated programs, must catch. `make -C dirty check-controls` builds them and says where they are.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use common::{setups, with_each};
use dirty_oracle::judge::Setup;
use dirty_oracle::outcome::{Outcome, Verdict};
use dirty_oracle::property::{Search, search};
use dirty_oracle::run::{Order, What};
use dirty_oracle::scenario::{ALL, Scenario};
use dirty_oracle::subject::Subject;
use dirty_oracle::tracker::Record;
use dirty_oracle::workload::Target;

/// A fault for each of many pages takes half a minute; a mistake that shows there shows in one page.
const LARGE: &str = "alternate-pages";

/// A program that runs the oracle with this mistake. (The tests run side by side in one environment.)
fn mutant(name: &str) -> PathBuf {
    let folder = std::env::var("DIRTY_MUTANTS").expect("run by make -C dirty check-controls");
    let oracle = PathBuf::from(folder).join("dirty-oracle");
    assert!(oracle.exists(), "{} is not built", oracle.display());
    let test = std::thread::current().name().unwrap_or("main").replace("::", "-");
    let script = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{name}"));
    let text = format!("#!/bin/sh\nDIRTY_MUTANT={name} exec '{}' \"$@\"\n", oracle.display());
    std::fs::write(&script, text).expect("it can be written");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("it is ours");
    script
}

/// Every scenario that `concerns` must catch the mistake; those that do not are defects of the oracle.
fn must_be_caught(
    name: &str,
    seconds: f64,
    concerns: fn(&Scenario, &Record) -> bool,
    is_caught: fn(&Outcome) -> bool,
) {
    let program = mutant(name);
    let done = with_each(seconds, |setup| {
        let (mut blind, mut caught) = (Vec::new(), 0);
        let record = &setup.subject.record().expect("a back end has one");
        let telling = |scenario: &&Scenario| {
            scenario.is_telling(record) && concerns(scenario, record) && scenario.name != LARGE
        };
        for scenario in ALL.iter().filter(telling) {
            let order = Order::new(setup.clone(), What::Scenario(scenario.name.into()));
            let verdict = order.spawn(&program, Duration::from_secs(300)).expect("the oracle starts");
            let head = format!("{} {} {}", setup.subject, setup.target.name(), scenario.name);
            match verdict {
                Verdict::Done(outcome) if is_caught(&outcome) => caught += 1,
                Verdict::Skipped(why) => println!("{head}: skipped: {why}"),
                verdict => blind.push(format!("{head}: {verdict:?}")),
            }
        }
        (blind, caught)
    });
    let (blind, caught): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let (blind, caught) = (blind.concat(), caught.iter().sum::<u32>());
    println!("{name}: caught {caught} times");
    assert!(blind.is_empty() && caught > 0, "{name} went by unseen in\n{}", blind.join("\n"));
}

fn has_missed(outcome: &Outcome) -> bool {
    outcome.missed > 0
}

#[test]
fn a_back_end_that_does_not_arm_again_is_caught() {
    must_be_caught("libdirty-rearm", 0.0, |_, _| true, has_missed);
}

#[test]
fn a_back_end_that_takes_and_arms_in_two_steps_is_caught() {
    // It ends at the first page missed; a busy machine may need long for that: seven seconds with seven others on
    // two processors.
    must_be_caught("libdirty-race", 240.0, |scenario, _| scenario.races, has_missed);
}

#[test]
fn a_back_end_that_is_blind_to_discards_is_caught() {
    must_be_caught("libdirty-discard", 0.0, |scenario, _| scenario.discards, has_missed);
}

#[test]
fn a_back_end_that_reports_what_others_write_is_caught() {
    let concerns = |scenario: &Scenario, record: &Record| scenario.noisy && record.exact;
    must_be_caught("libdirty-foreign", 0.0, concerns, |outcome| !outcome.failures.is_empty());
}

#[test]
fn a_collect_of_a_range_that_takes_what_is_beside_it_is_caught() {
    must_be_caught("libdirty-range-takes", 0.0, |scenario, _| scenario.ranges, has_missed);
}

#[test]
fn a_peek_that_takes_is_caught() {
    must_be_caught("libdirty-peek-takes", 0.0, |scenario, _| scenario.peeks, has_missed);
}

#[test]
fn a_plugin_that_forgets_a_page_in_a_thousand_is_caught() {
    let folder = std::env::var("DIRTY_MUTANTS").expect("run by make -C dirty check-controls");
    let file = PathBuf::from(folder).join("plugin-forgets.so");
    assert!(file.exists(), "{} is not built", file.display());
    let setup = Setup { subject: Subject::Plugin(file), target: Target::Own, seconds: 0.0 };
    for name in ["one-writer", "not-huge", "racing-writers"] {
        let order = Order::new(setup.clone(), What::Scenario(name.into()));
        let verdict = order.spawn(common::program(), Duration::from_secs(300)).expect("the oracle starts");
        // Without the mistake tests/conformance.rs finds the same plug-in good.
        assert!(matches!(&verdict, Verdict::Done(outcome) if has_missed(outcome)), "{name}: {verdict:?}");
    }
}

/// Among so many generated programs there must be one that shows the mistake.
const CASES: u32 = 1000;

#[test]
fn the_search_finds_mistakes() {
    for name in ["libdirty-rearm", "libdirty-discard", "libdirty-range-takes", "libdirty-peek-takes"] {
        let program = mutant(name);
        for setup in setups(0.0) {
            let (backend, target) = (&setup.subject, setup.target.name());
            match search(&program, &setup, CASES, 500, None).expect("the search works") {
                Search::Found(sequence, verdict) => {
                    println!("{backend} {target} {name}: {} steps: {verdict:?}", sequence.0.len());
                }
                Search::Skipped(why) => println!("{backend} {target}: {why}"),
                Search::Passed => panic!("{backend} {target}: {name} was not found"),
            }
        }
    }
}
