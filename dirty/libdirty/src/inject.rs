// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TODO
use crate::target::Target;
use crate::uffd::Faults;
use std::os::fd::OwnedFd;

pub(crate) fn userfaultfd(_target: &Target, _faults: Faults) -> Result<OwnedFd, String> {
    Err("not yet".into())
}
