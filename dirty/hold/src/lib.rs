// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps trackers between a pre-dump and a dump: a holder process tracks, and clients that come and go ask it over a
//! Unix socket what was written. The protocol is described in `trapless-dirty-hold(7)`.
//!
//! Invariants:
//! - **Never falsely clean.** A client learns of pages that were not written only for a process that has been tracked
//!   without a gap since the moment it names. In every other case, the holder's own death included, the answer is
//!   that everything may have been written, and why.
//! - **The right to ask is the caller's.** The holder, which may be root, tells nobody of a process that this caller
//!   could not ptrace itself (`permission`).
//! - **Clients do not harm each other.** Each has moments of its own to ask from, and none can block or end the holder.

pub mod client;
mod connection;
mod held;
pub mod holder;
mod permission;
mod process;
pub mod protocol;
mod rounds;

/// Its program is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

pub use client::Client;
pub use holder::{Holder, Options};
