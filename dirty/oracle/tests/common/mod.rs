// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of the oracle share.

use std::path::Path;

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
