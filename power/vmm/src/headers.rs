// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For tests: what the kernel's headers say, as cross-compiled.

use std::collections::BTreeMap;
use std::process::Command;

/// The values that a file in tests/ prints, from lines `->name value` of its assembly.
fn values_in(source: &str) -> BTreeMap<String, u64> {
    let compiler = Command::new("powerpc-linux-gnu-gcc-12").args(["-S", "-o", "-", source]).output();
    let output = compiler.expect("the cross compiler is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("->"));
    let pairs = lines.map(|line| line.rsplit_once(' ').expect("a name and a value"));
    // Values are signed words in assembly.
    pairs.map(|(name, value)| (name.into(), value.parse::<i64>().unwrap() as u32 as u64)).collect()
}

/// Holds our values against those that a file in tests/ prints. As negative controls, the value called `wrong`
/// is changed there, and the one called `missing` left out.
pub fn must_agree(ours: &BTreeMap<String, u64>, source: &str, wrong: &str, missing: &str) {
    let headers = values_in(source);
    assert_eq!(*ours, headers);
    let mut changed = headers.clone();
    *changed.get_mut(wrong).unwrap() += 4;
    assert_ne!(*ours, changed);
    changed.clone_from(&headers);
    changed.remove(missing).unwrap();
    assert_ne!(*ours, changed);
}
