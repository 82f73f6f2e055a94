// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A processor for which nobody has written this yet: refused, at run time. What a port has to know is in the two
//! files beside this one.

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::target::Target;

pub(super) const NEEDS_GUARDIAN: bool = false;

pub(super) fn is_supported() -> Result<(), String> {
    Err(format!(
        "making a userfaultfd in another process is written for x86-64 and arm64, not for this processor ({})",
        std::env::consts::ARCH
    ))
}

/// There is none.
pub(super) enum Place {}

impl Place {
    pub(super) fn find(_: &Target, _: Pid) -> Result<Option<Self>, String> {
        is_supported().map(|()| None)
    }
}

pub(super) fn result(_: Pid) -> Result<i64, Errno> {
    Err(Errno::ENOSYS)
}

/// There is none.
pub(super) enum Detour {}

impl Detour {
    pub(super) fn build(_: &Target, _: Pid, place: &Place, _: u64) -> Result<Self, String> {
        match *place {}
    }

    pub(super) fn enter(&self, _: Pid, _: &Place, _: i64, _: i64) -> Result<(), Errno> {
        match *self {}
    }

    pub(super) fn close(&self, _: Pid, _: &Place, _: i64) -> Result<(), Errno> {
        match *self {}
    }

    pub(super) fn end(&self, _: Pid, _: &Place, _: u64) -> Result<(), String> {
        match *self {}
    }
}
