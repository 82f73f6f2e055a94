// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a descriptor can stand for: which of the two files, and whose.

/// One of the two kinds of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pagemap,
    ClearRefs,
}

/// What an open descriptor stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    /// As `/proc` here numbers it; `None` where the file is of another mount of procfs, which may number
    /// processes otherwise.
    pub(crate) pid: Option<i32>,
}

impl Known {
    /// As a word that is not 0.
    pub(crate) fn pack(self) -> u64 {
        let kind = if self.kind == Kind::Pagemap { 1 } else { 2 };
        kind << 32 | u64::from(self.pid.unwrap_or(0).cast_unsigned())
    }

    /// What [`Known::pack`] made.
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let kind = match word >> 32 {
            1 => Kind::Pagemap,
            2 => Kind::ClearRefs,
            _ => return None,
        };
        let pid = (word as u32).cast_signed();
        Some(Known { kind, pid: (pid != 0).then_some(pid) })
    }
}
