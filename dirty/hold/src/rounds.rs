// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For each page the last collect that reported it. So any number of clients can ask for what was written since
//! moments of their own, and none takes anything away from another.

use std::collections::BTreeMap;

use libdirty::{PageRange, Reason};

use crate::protocol::Extent;

/// Extents that are kept apart; a process that is written in more pieces is taken for written as a whole.
const MOST: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    end: usize,
    round: u64,
    reason: Reason,
}

/// The pages that were reported, by the first address, without overlap.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pieces: BTreeMap<usize, Piece>,
}

impl Rounds {
    /// `range` was reported in `round`, which is not before any other.
    pub(crate) fn put(&mut self, range: PageRange, round: u64, reason: Reason) {
        let (mut start, mut end) = (range.start(), range.end());
        let overlapping = self.pieces.range(..end).rev().take_while(|(_, piece)| piece.end >= start);
        let overlapping: Vec<_> = overlapping.map(|(at, piece)| (*at, *piece)).collect();
        for (at, piece) in overlapping {
            if piece.round == round && piece.reason == reason {
                self.pieces.remove(&at);
                (start, end) = (start.min(at), end.max(piece.end));
                continue;
            }
            if piece.end == range.start() {
                continue;
            }
            self.pieces.remove(&at);
            if at < range.start() {
                self.pieces.insert(at, Piece { end: range.start(), ..piece });
            }
            if piece.end > range.end() {
                self.pieces.insert(range.end(), piece);
            }
        }
        self.pieces.insert(start, Piece { end, round, reason });
        self.limit(round);
    }

    /// As [`Rounds::put`] for each of them, which are sorted and do not overlap. All pieces are gone through if that is
    /// less work: one at a time, a few thousand take a checkpointer's process longer than finding them.
    pub(crate) fn put_all(&mut self, found: &[(PageRange, Reason)], round: u64) {
        if found.len() < self.pieces.len() / 8 {
            found.iter().for_each(|(range, reason)| self.put(*range, round, *reason));
            return;
        }
        let mut old = std::mem::take(&mut self.pieces).into_iter();
        let mut all = Vec::with_capacity(found.len() + old.len());
        // Of an old piece, what lies behind the last new one.
        let mut rest = None;
        for (range, reason) in found {
            while let Some((at, piece)) = rest.take().or_else(|| old.next()) {
                if piece.end <= range.start() {
                    all.push((at, piece));
                    continue;
                }
                if at < range.start() {
                    all.push((at, Piece { end: range.start(), ..piece }));
                }
                if piece.end > range.end() {
                    rest = Some((at.max(range.end()), piece));
                    break;
                }
            }
            all.push((range.start(), Piece { end: range.end(), round, reason: *reason }));
        }
        all.extend(rest);
        all.extend(old);
        self.pieces = all.into_iter().collect();
        self.limit(round);
    }

    fn limit(&mut self, round: u64) {
        if self.pieces.len() > MOST {
            self.pieces.clear();
            let all = PageRange::everything();
            self.pieces.insert(all.start(), Piece { end: all.end(), round, reason: Reason::Overflow });
        }
    }

    /// What was reported after `round` within `range`: at most `most` extents, and where to go on.
    pub(crate) fn since(&self, round: u64, range: PageRange, most: usize) -> (Vec<Extent>, Option<usize>) {
        let before = self.pieces.range(..range.start()).next_back();
        let first = before.filter(|(_, piece)| piece.end > range.start()).into_iter();
        let pieces = first.chain(self.pieces.range(range.start()..range.end()));
        let mut extents = Vec::new();
        for (start, piece) in pieces.filter(|(_, piece)| piece.round > round) {
            let (start, end) = ((*start).max(range.start()), piece.end.min(range.end()));
            if extents.len() == most {
                return (extents, Some(start));
            }
            if let Ok(range) = PageRange::new(start, end) {
                extents.push(Extent { range, reason: piece.reason as u32 });
            }
        }
        (extents, None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libdirty::page_size;
    use proptest::prelude::*;

    use super::*;

    fn range(first: usize, pages: usize) -> PageRange {
        PageRange::from_length(first * page_size(), pages * page_size()).unwrap()
    }

    proptest! {
        /// Against a table with a line for each page.
        #[test]
        fn each_page_has_its_last_round(
            puts in proptest::collection::vec((1usize..60, 1usize..20, 0u64..2, 0u32..2), 0..80),
            asked in (1usize..80, 1usize..40),
            back in 0u64..40,
            most in 1usize..9,
        ) {
            let (mut rounds, mut table, mut round) = (Rounds::default(), BTreeMap::new(), 1);
            for (first, pages, step, reason) in puts {
                round += step;
                let reason = if reason == 0 { Reason::Written } else { Reason::NewMapping };
                rounds.put(range(first, pages), round, reason);
                for page in first..first + pages {
                    table.insert(page, (round, reason as u32));
                }
            }
            let since = round.saturating_sub(back);
            let wanted: Vec<_> = (asked.0..asked.0 + asked.1)
                .filter_map(|page| table.get(&page).filter(|line| line.0 > since).map(|line| (page, line.1)))
                .collect();
            // In parts, as a client with little room gets it.
            let (mut found, mut rest) = (Vec::new(), Some(range(asked.0, asked.1)));
            while let Some(part) = rest {
                let (extents, next) = rounds.since(since, part, most);
                prop_assert!(extents.len() <= most);
                for extent in extents {
                    let pages = extent.range.start() / page_size()..extent.range.end() / page_size();
                    found.extend(pages.map(|page| (page, extent.reason)));
                }
                rest = next.map(|next| PageRange::new(next, part.end()).unwrap());
            }
            prop_assert_eq!(found, wanted);
        }
    }

    proptest! {
        /// Whether they are put one at a time or together.
        #[test]
        fn all_at_once_is_as_one_at_a_time(
            batches in proptest::collection::vec(
                proptest::collection::vec((0usize..4, 1usize..6, 0u32..2), 0..24), 0..12
            ),
        ) {
            let (mut together, mut apart) = (Rounds::default(), Rounds::default());
            for (round, batch) in (1u64..).zip(&batches) {
                let mut at = 1;
                let mut found = Vec::new();
                for (gap, pages, reason) in batch {
                    let reason = if *reason == 0 { Reason::Written } else { Reason::NewMapping };
                    found.push((range(at + gap, *pages), reason));
                    at += gap + pages;
                }
                together.put_all(&found, round);
                found.iter().for_each(|(range, reason)| apart.put(*range, round, *reason));
                for since in 0..=round {
                    let pages = |rounds: &Rounds| {
                        let (extents, next) = rounds.since(since, range(1, 300), usize::MAX);
                        assert_eq!(next, None);
                        let each = |extent: &Extent| {
                            let pages = extent.range.start() / page_size()..extent.range.end() / page_size();
                            pages.map(|page| (page, extent.reason)).collect::<Vec<_>>()
                        };
                        extents.iter().flat_map(each).collect::<Vec<_>>()
                    };
                    prop_assert_eq!(pages(&together), pages(&apart));
                }
            }
        }
    }

    #[test]
    fn too_many_pieces_together_are_everything() {
        let mut rounds = Rounds::default();
        let pieces: Vec<_> = (0..=MOST).map(|page| (range(1 + 2 * page, 1), Reason::Written)).collect();
        rounds.put_all(&pieces, 1);
        assert_eq!(rounds.since(0, range(5, 1), 10).0[0].reason, Reason::Overflow as u32);
        assert_eq!(rounds.pieces.len(), 1);
    }

    #[test]
    fn too_many_pieces_are_everything() {
        let mut rounds = Rounds::default();
        for page in 0..=MOST {
            rounds.put(range(1 + 2 * page, 1), 1, Reason::Written);
        }
        let (extents, next) = rounds.since(0, range(5, 1), 10);
        assert_eq!((extents[0].range, extents[0].reason, next), (range(5, 1), Reason::Overflow as u32, None));
        assert_eq!(rounds.pieces.len(), 1);
    }
}
