// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Not there yet.

use super::{Armed, Backend, Collection, Part};
use crate::capability::BackendKind;
use crate::extent::PageRange;
use crate::fault::Fault;
use crate::maps::Mapping;
use crate::target::Target;

#[derive(Debug)]
pub(super) struct UffdSync;

impl UffdSync {
    pub(super) fn open(_target: &Target, _fault: Option<Fault>) -> Result<Self, String> {
        Err("not there yet".into())
    }
}

impl Backend for UffdSync {
    fn kind(&self) -> BackendKind {
        BackendKind::UffdSync
    }

    fn arm(&mut self, _target: &Target, _part: &Part, _mappings: &[Mapping]) -> Armed {
        unreachable!()
    }

    fn disarm(&mut self, _target: &Target, _range: PageRange, _mapped: bool) {}

    fn collect(&mut self, _target: &Target, _work: &mut Collection<'_>) {}
}
