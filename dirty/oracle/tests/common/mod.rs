// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of the oracle share.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dirty_oracle::judge::Setup;
use dirty_oracle::workload::Target;

/// The binary that runs orders.
#[allow(dead_code, reason = "the controls run the mutants'")]
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_dirty-oracle"))
}

/// Every back end that works here, on every process that it can track; says what is left out.
pub fn setups(seconds: f64) -> Vec<Setup> {
    let mut setups = Vec::new();
    for finding in libdirty::survey() {
        let backend = finding.backend;
        if let Some(why) = finding.rejected {
            println!("{backend} does not work here: {why}");
            continue;
        }
        setups.push(Setup { subject: backend.into(), target: Target::Own, seconds });
        if backend.capabilities().other_process {
            setups.push(Setup { subject: backend.into(), target: Target::Other, seconds });
        }
    }
    assert!(!setups.is_empty(), "no back end works here: nothing was tested");
    setups
}

/// What `work` makes of each of the [`setups`], as many at a time as there are processors.
#[allow(dead_code, reason = "the search runs one after the other")]
pub fn with_each<T: Send>(seconds: f64, work: impl Fn(&Setup) -> T + Sync) -> Vec<T> {
    let setups = setups(seconds);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some(setup) = setups.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(work(setup));
        }
        done
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it has not panicked")).collect()
    })
}
