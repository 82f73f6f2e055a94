// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The working set: the distinct pages written within a sliding window.
//!
//! Each interval of the window has its pages as a compressed bitmap (Roaring): at most about one bit a page for
//! each 256 MiB stretch with written pages, two bytes a page if these are few, and very little for runs. A window
//! of 10 intervals with 1 GiB written in each takes at most 10 times 32 KiB.

use std::collections::VecDeque;

use libdirty::{Dirty, Reason, page_size};
use roaring::{MultiOps, RoaringTreemap};

/// Pages by interval.
#[derive(Debug)]
pub struct WorkingSet {
    /// Seconds.
    window: f64,
    /// End of the interval, its pages.
    intervals: VecDeque<(f64, RoaringTreemap)>,
}

impl WorkingSet {
    pub fn new(window: f64) -> Self {
        WorkingSet { window, intervals: VecDeque::new() }
    }

    /// Add the interval that ended at `t` and return how many distinct pages the window has.
    ///
    /// A whole interval belongs to the window as long as its end does.
    pub fn add(&mut self, t: f64, dirty: &Dirty) -> u64 {
        let mut pages = RoaringTreemap::new();
        for extent in dirty.extents().iter().filter(|extent| extent.reason == Reason::Written) {
            let page = |address: usize| (address / page_size()) as u64;
            pages.insert_range(page(extent.range.start())..page(extent.range.end()));
        }
        self.push(t, pages)
    }

    fn push(&mut self, t: f64, pages: RoaringTreemap) -> u64 {
        self.intervals.push_back((t, pages));
        // Keep the newest, even if the window is shorter.
        while self.intervals.len() > 1 && self.intervals[0].0 <= t - self.window {
            self.intervals.pop_front();
        }
        self.intervals.iter().map(|(_, pages)| pages).union().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slides() {
        let mut set = WorkingSet::new(2.0);
        let sizes: Vec<_> = [0..10, 5..12, 1 << 40..(1 << 40) + 3, 0..0, 0..0]
            .into_iter()
            .zip(1..)
            .map(|(range, t)| {
                let mut pages = RoaringTreemap::new();
                pages.insert_range(range);
                set.push(f64::from(t), pages)
            })
            .collect();
        assert_eq!(sizes, [10, 12, 10, 3, 0]);
    }
}
