// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The twins: each mechanism by hand, with nothing around it, to measure what the library adds.
//!
//! A twin tracks one range of private memory that is never remapped, and its writer waits while it collects. What
//! a tracker for real use also needs (threads, other mappings, fork, a foreign signal handler) is left out on
//! purpose: this is the least that the mechanism can cost.

mod bits;
mod module;
mod mprotect;
mod soft_dirty;
mod uffd;
mod uffd_async;
mod uffd_sync;

use anyhow::{Result, bail};
use libdirty::device::abi;
use libdirty::{BackendKind, PageRange};

use super::method::Method;

/// Arm the twin of a back end on `range`.
///
/// # Errors
/// When the kernel refuses, and for a back end that has no twin.
pub fn start(kind: BackendKind, range: PageRange) -> Result<Box<dyn Method>> {
    Ok(match kind {
        BackendKind::Mprotect => Box::new(mprotect::Twin::start(range)?),
        BackendKind::SoftDirty => Box::new(soft_dirty::Twin::start(range)?),
        BackendKind::UffdSync => Box::new(uffd_sync::Twin::start(range)?),
        BackendKind::UffdAsync => Box::new(uffd_async::Twin::start(range)?),
        BackendKind::Dbit => Box::new(module::Twin::start(abi::DBIT, range)?),
        BackendKind::Spml => Box::new(module::Twin::start(abi::SPML, range)?),
        BackendKind::Epml => Box::new(module::Twin::start(abi::EPML, range)?),
        _ => bail!("{kind} has no twin in this benchmark"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::bench::region::{Region, Verdict};
    use crate::testing::alone;

    /// Every twin that works on this kernel must be exact, as the basis of the comparison.
    #[test]
    fn twins_are_exact() {
        let _alone = alone();
        let mut region = Region::new(4096 * libdirty::page_size()).unwrap();
        for finding in libdirty::survey() {
            if finding.rejected.is_some() {
                continue;
            }
            let range = region.first(4096);
            region.judge(&[range]);
            let mut twin = start(finding.backend, range).unwrap();
            for stride in [1, 3, 4096] {
                region.touch(4096, stride);
                twin.collect().unwrap();
                assert_eq!(region.judge(&twin.reported()), Verdict::default(), "{}", finding.backend);
            }
            twin.collect().unwrap();
            assert!(twin.reported().is_empty());
        }
    }
}
