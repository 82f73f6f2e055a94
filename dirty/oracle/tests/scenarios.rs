// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every scenario against every back end that works here: nothing may be missed.

mod common;

use std::time::Duration;

use common::{program, with_each};
use dirty_oracle::judge::Setup;
use dirty_oracle::outcome::Verdict;
use dirty_oracle::run::{Order, What};
use dirty_oracle::scenario::{ALL, Scenario};

fn run(scenario: &Scenario, setup: &Setup) -> Verdict {
    let order = Order::new(setup.clone(), What::Scenario(scenario.name.into()));
    order.spawn(program(), Duration::from_secs(300)).expect("the oracle starts")
}

#[test]
fn nothing_is_missed() {
    let wrong: Vec<String> = with_each(1.0, |setup| {
        let mut wrong = Vec::new();
        for scenario in ALL {
            let verdict = run(scenario, setup);
            let line = format!("{} {} {}: {verdict:?}", setup.subject, setup.target.name(), scenario.name);
            println!("{line}");
            if !verdict.is_good() {
                wrong.push(line);
            }
        }
        wrong.join("\n")
    });
    assert!(wrong.iter().all(String::is_empty), "{}", wrong.join("\n"));
}
