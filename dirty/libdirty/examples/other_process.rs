// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keep a copy of all memory of another process up to date by copying only what was written.
//!
//! The argument is its pid; without one, a shell that counts is tracked for three rounds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use libdirty::{Dirty, Tracker, page_size};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(pid) = std::env::args().nth(1) {
        return follow(pid.parse()?);
    }
    let counting = "echo begun; while :; do i=$((i + 1)); done";
    let mut child = Command::new("sh").args(["-c", counting]).stdout(Stdio::piped()).spawn()?;
    let mut begun = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut begun)?;
    let outcome = follow(i32::try_from(child.id())?);
    child.kill()?;
    child.wait()?;
    outcome
}

fn follow(pid: i32) -> Result<(), Box<dyn std::error::Error>> {
    let mut tracker = Tracker::builder().process(pid)?;
    tracker.watch_all()?;
    tracker.start_over()?; // the first collect reports all that is mapped
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut copy = BTreeMap::new(); // pages by address; what is not in it is zeros, or not mapped
    let mut dirty = Dirty::new();
    for round in 1..=3 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        tracker.collect(&mut dirty)?;
        for extent in &dirty {
            let (start, end) = (extent.range.start(), extent.range.end());
            let old: Vec<usize> = copy.range(start..end).map(|(page, _)| *page).collect();
            old.iter().for_each(|page| drop(copy.remove(page)));
            if !extent.reason.is_mapped() || extent.reason.is_zero() {
                continue;
            }
            for page in (start..end).step_by(page_size()) {
                let mut content = vec![0; page_size()];
                // Where it fails there is nothing to copy, or no more: then the next collect says so.
                if memory.read_exact_at(&mut content, page as u64).is_ok() {
                    copy.insert(page, content);
                }
            }
        }
        println!("round {round}: {} pages to copy, by {}", dirty.pages(), tracker.backend());
    }
    Ok(())
}
