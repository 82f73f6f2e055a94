// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One back end against its twin and against no tracking at all.
//!
//! The three take turns on the same memory, in alternating order, so that a change of the host's speed affects all
//! of them. Ratios are of consecutive passes; their median and spread are reported.

use std::time::Duration;

use anyhow::{Context, Result};
use libdirty::{BackendKind, CostClass, PageRange};
use serde::Serialize;

use super::clock::Clock;
use super::memory::{self, Memory};
use super::method::{Library, Method};
use super::region::Region;
use super::statistics::Spread;
use super::twin;

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Every how many-th page is written.
    pub stride: usize,
    /// Turns of library and twin.
    pub repeat: usize,
    /// The time limit of a pass for back ends with a signal or a thread switch a page: these get fewer pages.
    pub pass: Duration,
}

/// The costs of one back end here. Times are nanoseconds a dirtied page unless the name says otherwise.
#[derive(Debug, Serialize)]
pub struct Row {
    pub backend: &'static str,
    /// Pages watched.
    pub pages: usize,
    /// Pages written in a pass.
    pub dirtied: usize,
    pub tracked_ns_per_page: f64,
    pub collect_ns_per_page: f64,
    /// Against the comparison of memory, over every collect of the library.
    pub missed: usize,
    pub spurious: usize,
    /// Pages that the library reported as not knowable, for example after an overflow.
    pub in_doubt: usize,
    /// The same for the twin: if it is not 0, the comparison is invalid.
    pub twin_missed: usize,
    pub untracked_ns_per_page: Spread,
    pub tracked: Spread,
    pub collect: Spread,
    /// A collect that finds nothing, nanoseconds a watched page.
    pub collect_clean: Spread,
    /// To begin tracking, nanoseconds a watched page.
    pub arm: Spread,
    pub twin_tracked: Spread,
    pub twin_collect: Spread,
    pub twin_arm: Spread,
    /// Writing under tracking to writing without.
    pub tracked_over_untracked: Spread,
    /// Library to twin: a pass of writes and its collect together, and the collect alone.
    pub library_over_twin: Spread,
    pub collect_over_twin: Spread,
    pub memory: Memory,
}

/// One turn.
#[derive(Debug)]
struct Turn {
    arm: f64,
    tracked: f64,
    collect: f64,
    clean: f64,
    missed: usize,
    spurious: usize,
    in_doubt: usize,
}

/// Measure one back end.
///
/// # Errors
/// When the kernel refuses something that it did not refuse on the scratch pages of the survey.
pub fn measure(
    kind: BackendKind,
    region: &mut Region,
    plan: &Plan,
    clock: &Clock,
    tick: &dyn Fn(),
) -> Result<Row> {
    let pages = fitting_pages(kind, region, plan, clock)?;
    let range = region.first(pages);
    let (mut library, mut twins, mut untracked) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..plan.repeat {
        for who in [n % 2, (n + 1) % 2] {
            // Everything is written once before, so that each turn finds the same caches, and no page is
            // still armed by an earlier turn.
            region.touch(pages, plan.stride);
            untracked.push(clock.time(|| region.touch(pages, plan.stride)).0);
            region.judge(&[range]);
            if who == 0 {
                library.push(
                    turn(region, range, plan.stride, clock, || Library::start(kind, range))
                        .context("library")?,
                );
            } else {
                let started = || twin::start(kind, range);
                twins.push(turn(region, range, plan.stride, clock, started).context("twin")?);
            }
            tick();
        }
    }
    let dirtied = pages.div_ceil(plan.stride);
    let a_dirtied =
        |turns: &[Turn], of: fn(&Turn) -> f64| Spread::of(turns.iter().map(|t| of(t) / dirtied as f64));
    let a_watched =
        |turns: &[Turn], of: fn(&Turn) -> f64| Spread::of(turns.iter().map(|t| of(t) / pages as f64));
    let ratio = |of: fn(&Turn) -> f64| Spread::of(library.iter().zip(&twins).map(|(a, b)| of(a) / of(b)));
    let (tracked, collect) = (a_dirtied(&library, |t| t.tracked), a_dirtied(&library, |t| t.collect));
    Ok(Row {
        backend: kind.name(),
        pages,
        dirtied,
        tracked_ns_per_page: tracked.median,
        collect_ns_per_page: collect.median,
        missed: library.iter().map(|t| t.missed).sum(),
        spurious: library.iter().map(|t| t.spurious).sum(),
        in_doubt: library.iter().map(|t| t.in_doubt).sum(),
        twin_missed: twins.iter().map(|t| t.missed).sum(),
        untracked_ns_per_page: Spread::of(untracked.iter().map(|ns| ns / dirtied as f64)),
        tracked,
        collect,
        collect_clean: a_watched(&library, |t| t.clean),
        arm: a_watched(&library, |t| t.arm),
        twin_tracked: a_dirtied(&twins, |t| t.tracked),
        twin_collect: a_dirtied(&twins, |t| t.collect),
        twin_arm: a_watched(&twins, |t| t.arm),
        tracked_over_untracked: Spread::of(
            library.iter().zip(untracked.chunks(2)).map(|(t, pair)| t.tracked / (pair[0] + pair[1]) * 2.0),
        ),
        library_over_twin: ratio(|t| t.tracked + t.collect),
        collect_over_twin: ratio(|t| t.collect),
        memory: memory::of_back_end(kind, region, pages)?,
    })
}

/// Arm, write, collect; then a collect without writes and one after few, for the judge.
fn turn<M: Method>(
    region: &mut Region,
    range: PageRange,
    stride: usize,
    clock: &Clock,
    start: impl FnOnce() -> Result<M>,
) -> Result<Turn> {
    let (arm, method) = clock.time(start);
    let mut method = method?;
    let mut turn = Turn { arm, tracked: 0.0, collect: 0.0, clean: 0.0, missed: 0, spurious: 0, in_doubt: 0 };
    turn.tracked = clock.time(|| region.touch(range.pages(), stride)).0;
    turn.collect = collect_and_judge(&mut method, region, clock, &mut turn)?;
    turn.clean = collect_and_judge(&mut method, region, clock, &mut turn)?;
    region.touch(range.pages(), (range.pages() / 64).max(1) | 1);
    collect_and_judge(&mut method, region, clock, &mut turn)?;
    Ok(turn)
}

/// The collect's nanoseconds.
fn collect_and_judge(
    method: &mut impl Method,
    region: &mut Region,
    clock: &Clock,
    turn: &mut Turn,
) -> Result<f64> {
    let (spent, done) = clock.time(|| method.collect());
    done?;
    let verdict = region.judge(&method.reported());
    turn.missed += verdict.missed;
    turn.spurious += verdict.spurious;
    turn.in_doubt += method.in_doubt();
    Ok(spent)
}

/// How many pages a pass may have: all if the kernel does the work, else estimated by a small run of the twin.
fn fitting_pages(kind: BackendKind, region: &mut Region, plan: &Plan, clock: &Clock) -> Result<usize> {
    if !matches!(kind.capabilities().cost, CostClass::SignalPerPage | CostClass::ThreadSwitchPerPage) {
        return Ok(region.pages());
    }
    let few = region.pages().min(2048);
    let range = region.first(few);
    let trial = turn(region, range, 1, clock, || twin::start(kind, range)).context("twin")?;
    let a_page = trial.tracked / few as f64;
    let dirtied = (plan.pass.as_nanos() as f64 / a_page) as usize;
    let pages = dirtied.saturating_mul(plan.stride).min(region.pages());
    let pages = if kind == BackendKind::Mprotect && plan.stride > 1 {
        pages.min(memory::separate_mappings()? * plan.stride)
    } else {
        pages
    };
    Ok((pages / 1024 * 1024).clamp(few.min(1024), region.pages()))
}

impl Method for Box<dyn Method> {
    fn collect(&mut self) -> Result<()> {
        (**self).collect()
    }

    fn reported(&self) -> Vec<PageRange> {
        (**self).reported()
    }

    fn in_doubt(&self) -> usize {
        (**self).in_doubt()
    }
}

#[cfg(test)]
mod tests {
    use libdirty::page_size;

    use super::*;
    use crate::testing::alone;

    fn kind() -> BackendKind {
        let works = libdirty::survey().into_iter().find(|finding| finding.rejected.is_none());
        works.expect("a back end").backend
    }

    #[test]
    fn the_library_misses_nothing() {
        let _alone = alone();
        let mut region = Region::new(2048 * page_size()).unwrap();
        let range = region.first(2048);
        let turn = turn(&mut region, range, 3, &Clock::Free, || Library::start(kind(), range)).unwrap();
        assert_eq!((turn.missed, turn.in_doubt), (0, 0));
    }
}
