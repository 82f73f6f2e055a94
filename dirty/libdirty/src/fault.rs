// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes, so that tests can be seen to fail. Only with the feature `fault-injection` can one be
//! chosen; without it the compiler knows that there is none.

/// A mistake to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(not(feature = "fault-injection"), allow(dead_code))] // nobody can choose one
pub enum Fault {
    /// A page that was reported is not armed again: later writes to it go unseen.
    Rearm,
    /// Taking a page and arming it again are two steps: a write between them goes unseen.
    Race,
    /// Memory that the program discards or replaces goes unseen.
    Discard,
    /// Pages that other processes write, at the addresses that are watched, are told.
    Foreign,
}
