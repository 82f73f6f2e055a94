// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty-page tracking for Linux userspace: which pages were written since the last time one asked.
//!
//! One [`Tracker`] watches ranges of the own process or of another, by the cheapest mechanism that works here:
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
//! Whatever cannot be told exactly is reported as dirty with a [`Reason`], never left out. What each mechanism does
//! not see at all stands in its [`Capabilities`].

mod backend;
mod bitmap;
mod builder;
mod capability;
mod content;
pub mod device;
mod error;
mod extent;
mod hugetlb;
mod inject;
mod maps;
mod news;
mod own;
pub mod pagemap;
mod scratch;
mod signals;
mod stop;
mod survey;
mod target;
mod tracker;
mod uffd;

pub use builder::Builder;
pub use capability::{BackendKind, Capabilities, CostClass, Sees};
pub use error::{Error, Result};
pub use extent::{Dirty, Extent, PageRange, Reason, page_size};
pub use survey::{Finding, survey};
pub use tracker::Tracker;
