// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C interface of libdirty. `include/dirty.h` is generated from this crate (`tests/header.rs` holds it to that),
//! so the comments of public items speak to readers of C.
//!
//! Invariants:
//! - A tracker is named by a number that is never given out twice, so a wrong, closed or stale handle is an error.
//! - A failed call returns a negative errno, has left a message for [`dirty_last_error`], and changed nothing.
//! - No panic and no thread cancellation crosses the border; a tracker in which a call panicked refuses all but
//!   [`dirty_close`].
//! - Nothing that a collect or a read needs is the program's to lock: see `memory`.
//! - What a collect found is kept until it was read or discarded.

mod call;
mod capability;
mod failure;
mod function;
mod handle;
mod memory;
mod reason;
mod session;
mod text;

pub use capability::{Capabilities, Cost, Sees};
pub use function::*;
pub use reason::Reason;
pub use session::Extent;
