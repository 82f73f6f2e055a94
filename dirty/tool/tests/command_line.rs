// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments, the doctor's answer, and a small bench.

mod common;

use common::{assert_refuses, run};
use serde_json::Value;

#[test]
fn wrong_arguments_are_usage_errors() {
    for (arguments, says) in [
        (&["dirty", "watch", "x"][..], "invalid value 'x'"),
        (&["dirty", "watch", "0"], "'0'"),
        (&["dirty", "watch", "1", "--interval", "0"], "seconds go from"),
        (
            &["dirty", "watch", "1", "--backend", "magic"],
            "no back end is called \"magic\"; there are uffd-async",
        ),
        (&["dirty", "record", "1"], "--output"),
        (&["dirty", "bench", "--size", "1"], "sizes go from"),
        (&["dirty", "bench", "--density", "2"], "from 0.001 to 1"),
        (&["dirty", "fly"], "fly"),
        (&[], "Usage"),
    ] {
        assert_refuses(&run(arguments), 2, says);
    }
}

#[test]
fn the_doctor_knows_every_back_end() {
    let output = run(&["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(told["host"]["kernel"].as_str().unwrap().starts_with("Linux "));
    for back_end in told["dirty"]["backends"].as_array().unwrap() {
        assert_eq!(back_end["works"], back_end["rejected"].is_null(), "{back_end}");
        let text = String::from_utf8(run(&["doctor"]).stdout).unwrap();
        assert!(text.contains(back_end["name"].as_str().unwrap()));
    }
    let works = !told["dirty"]["auto"]["own"].is_null();
    assert_eq!(output.status.code(), Some(i32::from(!works)));
}

#[test]
fn the_bench_judges_by_memory() {
    let output =
        run(&["dirty", "bench", "--quick", "--size", "8MiB", "--repeat", "2", "--density", "0.25", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = told["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!((row["missed"].as_u64(), row["twin_missed"].as_u64()), (Some(0), Some(0)), "{row}");
        assert!(row["tracked_ns_per_page"].as_f64() > Some(0.0));
        assert_eq!(row["library_over_twin"]["n"], 2);
    }
    let named = rows.len() + told["rejected"].as_array().unwrap().len();
    assert_eq!(named, 4, "each back end has a row or a reason");
}
