// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes made on purpose, for negative controls: an oracle that does not notice them proves nothing.

use std::str::FromStr;

/// A mistake that is made every so many times.
#[derive(Debug, Clone)]
pub struct Fault {
    kind: Kind,
    every: u64,
    count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An entry is dropped and nobody is told: the lying ring.
    Lose,
    /// An entry is no page of the guest.
    Wild,
    /// A drain answers OVERRUN without cause.
    Overrun,
}

impl Fault {
    fn is_due(&mut self, kind: Kind) -> bool {
        if self.kind != kind {
            return false;
        }
        self.count += 1;
        self.count.is_multiple_of(self.every)
    }

    /// What becomes of an entry.
    pub fn change(&mut self, frame: u64) -> Option<u64> {
        if self.is_due(Kind::Lose) {
            return None;
        }
        Some(if self.is_due(Kind::Wild) { u64::MAX - frame } else { frame })
    }

    /// Whether this drain is answered with OVERRUN.
    pub fn overruns(&mut self) -> bool {
        self.is_due(Kind::Overrun)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("{text} is not lose=N, wild=N or overrun=N with N at least 1");
        let (kind, every) = text.split_once('=').ok_or_else(wanted)?;
        let kind = match kind {
            "lose" => Kind::Lose,
            "wild" => Kind::Wild,
            "overrun" => Kind::Overrun,
            _ => return Err(wanted()),
        };
        match every.parse() {
            Ok(every) if every > 0 => Ok(Self { kind, every, count: 0 }),
            _ => Err(wanted()),
        }
    }
}
