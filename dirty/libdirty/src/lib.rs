// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty-page tracking for Linux userspace: which pages were written since the last time one asked.
//!
//! One [`Tracker`] watches ranges of the calling process or of another, by the cheapest mechanism that works here:
//!
//! ```
//! use libdirty::{Dirty, PageRange, Tracker, page_size};
//!
//! let mut memory = vec![0u8; 64 * page_size()];
//! let first = (memory.as_ptr() as usize).next_multiple_of(page_size());
//! let range = PageRange::from_length(first, 60 * page_size())?;
//!
//! let mut tracker = Tracker::builder().own()?;
//! tracker.watch(range)?;
//! memory[20 * page_size()] = 1;
//! let mut dirty = Dirty::new();
//! tracker.collect(&mut dirty)?;
//! assert!(dirty.mapped().any(|part| part.contains_address(&memory[20 * page_size()] as *const u8 as usize)));
//! # Ok::<(), libdirty::Error>(())
//! ```
//!
//! Where the exact pages are not knowable, they are reported as dirty, with a [`Reason`]; they are never left out. The
//! writes that a mechanism cannot see are listed in its [`Capabilities`].
//!
//! It is tested on x86-64 and arm64, and assumes no page size. Elsewhere [`BackendKind::Mprotect`] is refused, and
//! another process is tracked through [`Builder::userfaultfd`] only.

mod adopt;
mod backend;
mod bitmap;
mod builder;
mod capability;
mod claim;
mod content;
mod descriptor;
pub mod device;
mod error;
mod extent;
mod guardian;
mod hugetlb;
mod inject;
mod maps;
mod news;
mod own;
pub mod pagemap;
mod pending;
mod private;
mod room;
mod scratch;
mod seccomp;
mod signals;
mod status;
mod stop;
mod survey;
mod target;
mod tracker;
mod uffd;

/// Its programs are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

pub use builder::Builder;
pub use capability::{BackendKind, Capabilities, CostClass, Sees};
pub use error::{Error, Result};
pub use extent::{Dirty, Extent, PageRange, Reason, page_size};
pub use survey::{Finding, survey};
pub use tracker::Tracker;
