// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verdicts in the Test Anything Protocol, version 14: a line a case, and what was counted in a block of YAML.

use std::fmt::Write;

use crate::outcome::{Outcome, Verdict};

/// The first two lines.
#[must_use]
pub fn heading(cases: usize) -> String {
    format!("TAP version 14\n1..{cases}")
}

/// That no case can be judged, and why.
#[must_use]
pub fn bail_out(why: &str) -> String {
    format!("Bail out! {}", one_line(why))
}

/// The lines of one case.
#[must_use]
pub fn case(number: usize, name: &str, verdict: &Verdict, seconds: f64) -> String {
    let word = if verdict.is_good() { "ok" } else { "not ok" };
    let mut text = format!("{word} {number} - {name}");
    match verdict {
        Verdict::Skipped(why) => {
            let _ = write!(text, " # SKIP {}", one_line(why));
        }
        Verdict::Crashed(how) => {
            let how = format!("the process of the case, which the tracker is a part of: {how}");
            diagnostics(&mut text, &Outcome { failures: vec![how], ..Outcome::default() }, seconds);
        }
        Verdict::Done(outcome) => diagnostics(&mut text, outcome, seconds),
    }
    text
}

fn diagnostics(text: &mut String, outcome: &Outcome, seconds: f64) {
    let Outcome { missed, spurious, pages, collects, writes, doubts, notes, failures } = outcome;
    let _ = write!(
        text,
        "\n  ---\n  missed: {missed}\n  over_reported: {spurious}\n  reported: {pages}\n  collects: {collects}\n  \
         racing_writes: {writes}\n  seconds: {seconds:.2}"
    );
    if !doubts.is_empty() {
        text.push_str("\n  otherwise_reported:");
        for (why, pages) in doubts {
            let _ = write!(text, "\n    {}: {pages}", quoted(why));
        }
    }
    for (key, list) in [("wrong", failures), ("notes", notes)] {
        if !list.is_empty() {
            let _ = write!(text, "\n  {key}:");
            for item in list {
                let _ = write!(text, "\n    - {}", quoted(item));
            }
        }
    }
    text.push_str("\n  ...");
}

/// A string of JSON is one of YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Without what would end the line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The last line, a comment.
#[must_use]
pub fn summary(good: usize, bad: usize, skipped: usize) -> String {
    format!("# {good} ok, {bad} not ok, {skipped} skipped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_case() {
        let done = |outcome| Verdict::Done(outcome);
        assert_eq!(
            case(2, "swap (own)", &Verdict::Skipped("no swap\nis on".into()), 0.0),
            "ok 2 - swap (own) # SKIP no swap is on"
        );
        let good = case(1, "x", &done(Outcome { pages: 7, ..Outcome::default() }), 0.5);
        assert!(good.starts_with("ok 1 - x\n  ---\n  missed: 0\n") && good.ends_with("\n  ..."), "{good}");
        let wrong = Outcome { missed: 1, failures: vec!["a \"b\"\nc".into()], ..Outcome::default() };
        let bad = case(3, "x", &done(wrong), 0.5);
        assert!(bad.starts_with("not ok 3 - x\n") && bad.contains("    - \"a \\\"b\\\"\\nc\"\n"), "{bad}");
        assert!(case(3, "x", &Verdict::Crashed("SIGSEGV".into()), 0.5).starts_with("not ok"));
    }
}
