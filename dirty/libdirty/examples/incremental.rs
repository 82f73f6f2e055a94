// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keep a copy of some memory up to date by copying only what was written.

use libdirty::{Dirty, PageRange, Result, Tracker, page_size};

fn main() -> Result<()> {
    let page = page_size();
    let mut memory = vec![1u8; 1001 * page];
    let first = (memory.as_ptr() as usize).next_multiple_of(page) - memory.as_ptr() as usize;
    let memory = &mut memory[first..][..1000 * page];
    let base = memory.as_ptr() as usize;

    let mut tracker = Tracker::builder().own()?;
    tracker.watch(PageRange::from_length(base, memory.len())?)?;
    let mut copy = memory.to_vec();
    for byte in memory.iter_mut().step_by(50 * page) {
        *byte += 1;
    }

    let mut dirty = Dirty::new();
    tracker.collect(&mut dirty)?;
    for range in dirty.mapped() {
        let part = range.start() - base..range.end() - base;
        copy[part.clone()].copy_from_slice(&memory[part]);
    }
    println!("copied {} of {} pages by {}", dirty.pages(), memory.len() / page, tracker.backend());
    assert!(copy == memory);
    Ok(())
}
