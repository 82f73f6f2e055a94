// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every scenario against every back end that works here: nothing may be missed. The controls: back ends that
//! make a mistake on purpose, each of which the scenarios made for it must catch.

mod common;

use std::time::Duration;

use common::{program, setups};
use dirty_oracle::judge::Setup;
use dirty_oracle::outcome::{Outcome, Verdict};
use dirty_oracle::run::{Order, What};
use dirty_oracle::scenario::{ALL, Scenario};
use libdirty::Fault;

fn run(scenario: &Scenario, setup: Setup) -> Verdict {
    let order = Order::new(setup, What::Scenario(scenario.name.into()));
    order.spawn(program(), Duration::from_secs(300)).expect("the oracle starts")
}

#[test]
fn nothing_is_missed() {
    let mut wrong = Vec::new();
    for setup in setups(None, 2.0) {
        for scenario in ALL {
            let verdict = run(scenario, setup);
            let line = format!("{} {} {}: {verdict:?}", setup.backend, setup.target.name(), scenario.name);
            println!("{line}");
            if !verdict.is_good() {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The scenarios that must catch `fault`, run with it; those that do not are defects of the oracle.
fn must_be_caught(fault: Fault, seconds: f64, is_caught: fn(&Outcome) -> bool) {
    let mut blind = Vec::new();
    let mut caught = 0;
    for setup in setups(Some(fault), seconds) {
        let record = setup.backend.capabilities();
        for scenario in ALL.iter().filter(|scenario| scenario.must_catch(fault, record)) {
            match run(scenario, setup) {
                Verdict::Done(outcome) if is_caught(&outcome) => caught += 1,
                Verdict::Skipped(why) => println!("{} {}: skipped: {why}", setup.backend, scenario.name),
                verdict => blind.push(format!(
                    "{} {} {}: {verdict:?}",
                    setup.backend,
                    setup.target.name(),
                    scenario.name
                )),
            }
        }
    }
    println!("{fault:?}: caught {caught} times");
    assert!(blind.is_empty() && caught > 0, "{fault:?} went by unseen in\n{}", blind.join("\n"));
}

fn has_missed(outcome: &Outcome) -> bool {
    outcome.missed > 0
}

#[test]
fn a_back_end_that_does_not_arm_again_is_caught() {
    must_be_caught(Fault::Rearm, 0.0, has_missed);
}

#[test]
fn a_back_end_that_takes_and_arms_in_two_steps_is_caught() {
    // It ends at the first page missed; a busy machine may need long for that: seven seconds with seven others on
    // two processors.
    must_be_caught(Fault::Race, 240.0, has_missed);
}

#[test]
fn a_back_end_that_is_blind_to_discards_is_caught() {
    must_be_caught(Fault::Discard, 0.0, has_missed);
}

#[test]
fn a_back_end_that_tells_what_others_write_is_caught() {
    must_be_caught(Fault::Foreign, 0.0, |outcome| !outcome.failures.is_empty());
}
