// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Say how many pages another process writes: `observe PID [COLLECTS]`, one collect each 100 ms.

use std::error::Error;
use std::time::Duration;

use libdirty::{Dirty, Tracker};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let pid = arguments.next().ok_or("usage: observe PID [COLLECTS]")?.parse()?;
    let collects = arguments.next().map_or(Ok(10), |count| count.parse())?;

    let mut tracker = Tracker::builder().process(pid)?;
    tracker.watch_all()?;
    let mut dirty = Dirty::new();
    for _ in 0..collects {
        std::thread::sleep(Duration::from_millis(100));
        tracker.collect(&mut dirty)?;
        println!("{} pages, by {}", dirty.pages(), tracker.backend());
    }
    Ok(())
}
