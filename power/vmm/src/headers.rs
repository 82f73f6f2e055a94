// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For tests: what the kernel's headers say, as cross-compiled.

use std::collections::BTreeMap;
use std::process::Command;

/// The values that a file in tests/ prints, from lines `->name value` of its assembly.
pub fn values_in(source: &str) -> BTreeMap<String, u64> {
    let compiler = Command::new("powerpc-linux-gnu-gcc-12").args(["-S", "-o", "-", source]).output();
    let output = compiler.expect("the cross compiler is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("->"));
    let pairs = lines.map(|line| line.rsplit_once(' ').expect("a name and a value"));
    // Values are signed words in assembly.
    pairs.map(|(name, value)| (name.into(), value.parse::<i64>().unwrap() as u32 as u64)).collect()
}
