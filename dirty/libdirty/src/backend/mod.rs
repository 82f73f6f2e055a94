// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The back ends: [`contract`] says what each does, a file each how.

pub(crate) mod contract;
mod module;
mod mprotect;
mod soft_dirty;
mod uffd_async;
mod uffd_sync;

use std::os::fd::OwnedFd;

pub(crate) use self::contract::{Armed, Backend, Collection, Part, Place};
use crate::capability::BackendKind;
use crate::device::abi;
use crate::extent::{PageRange, page_size};
use crate::maps::Mapping;
use crate::target::Target;

/// The memory of one page table's pages.
fn block_size() -> usize {
    page_size() / size_of::<u64>() * page_size()
}

/// `found` grown to the borders of page tables, within `run`.
fn whole_blocks(found: PageRange, run: PageRange) -> PageRange {
    let size = block_size();
    PageRange::trusted(
        (found.start() / size * size).max(run.start()),
        found.end().div_ceil(size).saturating_mul(size).min(run.end()),
    )
}

/// `part` cut where mappings end. The pieces share its bits. What is not mapped any more is in none of them, and missing
/// from the mappings of the next collect.
fn pieces(part: &Part, mappings: &[Mapping]) -> Vec<Part> {
    let first = mappings.partition_point(|mapping| mapping.range.end() <= part.range.start());
    let ranges = mappings[first..].iter().map_while(|mapping| mapping.range.intersection(part.range));
    ranges.map(|range| Part { range, ..part.clone() }).collect()
}

/// Whether this kind of back end can track `target` at all.
///
/// # Errors
/// Why not.
pub(crate) fn check(kind: BackendKind, target: &Target) -> Result<(), String> {
    if !kind.capabilities().other_process && !target.is_own() {
        return Err("tracks the own process only".into());
    }
    Ok(())
}

/// Make a back end for `target`.
///
/// # Errors
/// What was tried and why it does not work here.
pub(crate) fn open(kind: BackendKind, target: &Target) -> Result<Box<dyn Backend>, String> {
    check(kind, target)?;
    let module = |mechanism| module::Module::open(kind, mechanism, target);
    Ok(match kind {
        BackendKind::Dbit => Box::new(module(abi::DBIT)?),
        BackendKind::Spml => Box::new(module(abi::SPML)?),
        BackendKind::Epml => Box::new(module(abi::EPML)?),
        BackendKind::Mprotect => Box::new(mprotect::Mprotect::open(target)?),
        BackendKind::SoftDirty => Box::new(soft_dirty::SoftDirty::open(target)?),
        BackendKind::UffdSync => Box::new(uffd_sync::UffdSync::open(target)?),
        BackendKind::UffdAsync => Box::new(uffd_async::UffdAsync::open(target, None)?),
    })
}

/// Make a back end for `target` with a userfaultfd that was handed over.
///
/// # Errors
/// As [`open`]; and for a kind that cannot use one, or not one of another's making.
pub(crate) fn open_with(
    kind: BackendKind,
    target: &Target,
    userfaultfd: OwnedFd,
) -> Result<Box<dyn Backend>, String> {
    if kind != BackendKind::UffdAsync {
        return Err(format!("a userfaultfd that is handed over is used by {} only", BackendKind::UffdAsync));
    }
    Ok(Box::new(uffd_async::UffdAsync::open(target, Some(userfaultfd))?))
}
