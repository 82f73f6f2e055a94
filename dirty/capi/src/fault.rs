// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes, so that the C tests can be seen to fail. Only with the feature `fault-injection` can one be
//! chosen, by its name in the variable `DIRTY_CAPI_FAULT`; without it the compiler knows that there is none.

/// A mistake to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A closed handle still names its tracker.
    StaleHandle,
    /// A read that fills the caller's array forgets what did not fit.
    LoseUnread,
    /// A read does not look at the size of the caller's array.
    Overrun,
}

/// Whether to make this mistake.
#[cfg(not(feature = "fault-injection"))]
pub(crate) const fn is(_fault: Fault) -> bool {
    false
}

/// Whether to make this mistake.
#[cfg(feature = "fault-injection")]
pub(crate) fn is(fault: Fault) -> bool {
    let name = match fault {
        Fault::StaleHandle => "stale-handle",
        Fault::LoseUnread => "lose-unread",
        Fault::Overrun => "overrun",
    };
    std::env::var_os("DIRTY_CAPI_FAULT").is_some_and(|chosen| chosen == name)
}
