// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reasons of libdirty under their names in C.

use std::ffi::c_char;

use crate::text::c_text;

/// Why pages are reported. All but DIRTY_REASON_WRITTEN and DIRTY_REASON_DISCARDED mean doubt: treat every page of the
/// extent as dirty. More may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Reason {
    /// Each page was written (or discarded, where the back end cannot distinguish the two) since the last collect.
    Written = 0,
    /// Something is mapped where nothing was, or something else than before.
    NewMapping = 1,
    /// Nothing is mapped here any more: there is nothing to copy. Reported once.
    Unmapped = 2,
    /// The back end cannot track this mapping now; reported by every collect until it can.
    Unsupported = 3,
    /// A resource ran out (a buffer, vm.max_map_count), and writes went untracked.
    Overflow = 4,
    /// The tracked program changed the protection that tracking relies on.
    ProtectionChanged = 5,
    /// The back end had to stop the threads of the process for a moment, and could not.
    NotStopped = 6,
    /// The process called execve: it has a new address space. Reported once.
    Exec = 7,
    /// The process ended. Reported once.
    Exited = 8,
    /// Each page reads as zeros, and may have read otherwise when it was last reported or watched: it was given back
    /// (MADV_DONTNEED, malloc_trim, a hole). There is nothing to copy: put zeros, or a hole, into the copy, even if
    /// you read something else there by now; a later write is reported by a later collect. The first collect after
    /// memory was watched reports all of its empty pages.
    Discarded = 9,
}

/// Numbers that C programs were compiled with must stay what they are.
macro_rules! texts {
    ($($name:ident)*) => {
        $(const _: () = assert!(libdirty::Reason::$name as u32 == Reason::$name as u32);)*

        /// In words; for an unknown number too.
        pub(crate) fn text(reason: u32) -> *const c_char {
            $(if reason == Reason::$name as u32 {
                return c_text!(libdirty::Reason::$name.text());
            })*
            c_text!("unknown reason: all dirty")
        }

        /// Whether there is something to read; of an unknown number, that is for the reader to find out.
        pub(crate) fn is_mapped(reason: u32) -> bool {
            $(if reason == Reason::$name as u32 {
                return libdirty::Reason::$name.is_mapped();
            })*
            true
        }

        /// Whether the copy is to be zeros.
        pub(crate) fn is_zero(reason: u32) -> bool {
            $(if reason == Reason::$name as u32 {
                return libdirty::Reason::$name.is_zero();
            })*
            false
        }
    };
}

texts! { Written NewMapping Unmapped Unsupported Overflow ProtectionChanged NotStopped Exec Exited Discarded }
