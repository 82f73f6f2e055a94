// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much is given to a userfaultfd at a time.
//!
//! Invariant: a mapping of the program is not watched in part because it grew, or was moved, while it was being watched
//! or left.
//!
//! The kernel cuts a mapping where a watch begins or ends, and then refuses an `mremap` of both pieces (`EFAULT`), which
//! no program expects. Between reading `/proc/PID/maps` and `UFFDIO_REGISTER` a program may have grown a mapping, or
//! moved it to where nothing was. So mappings are watched, and left, many at a time, with what is free between them: the
//! kernel does it under one lock, and passes over what is not mapped. No such range ends but where another mapping
//! begins that is there for long, or where one cannot be watched. Memory that appears in what was free is watched and not
//! armed, which costs it nothing; the next collect finds it.
//!
//! A program that unmaps such a neighbour in the same microseconds, and moves memory over its beginning, has that memory
//! cut until the next collect. In the own process that is less rare, for libdirty itself maps memory and unmaps it.

use crate::extent::PageRange;
use crate::maps::Mapping;

/// Have `act` done to all of `mappings` and what is free around them, up to `end`: at once to what lies between those
/// that `cannot` be watched, if it succeeds, or else to halves. Where it does not succeed for one mapping, it is not done.
pub(crate) fn each(
    mappings: &[Mapping],
    end: usize,
    cannot: impl Fn(&Mapping) -> bool,
    act: &mut impl FnMut(PageRange) -> bool,
) {
    let mut below = None;
    for between in mappings.chunk_by(|one, other| cannot(one) == cannot(other)) {
        let (first, last) = (between[0].range, between[between.len() - 1].range);
        if cannot(&between[0]) {
            below = Some(last.end());
            continue;
        }
        let after = mappings.partition_point(|mapping| mapping.range.start() < last.end());
        let end = mappings.get(after).map_or(end, |above| above.range.start());
        halves(between, below.unwrap_or(first.start()), end, act);
    }
}

fn halves(mappings: &[Mapping], start: usize, end: usize, act: &mut impl FnMut(PageRange) -> bool) {
    if act(PageRange::trusted(start, end)) || mappings.len() == 1 {
        return;
    }
    let (below, above) = mappings.split_at(mappings.len() / 2);
    let middle = above[0].range.start();
    halves(below, start, middle, act);
    halves(above, middle, end, act);
}

/// Two rooms of `range`, within the one of `limits` (sorted) that it is in: the mappings that it has pages of, with what
/// is free around them, and with the mapping below or without.
pub(crate) fn around(range: PageRange, mappings: &[Mapping], limits: &[PageRange]) -> [PageRange; 2] {
    let limit = limits.partition_point(|limit| limit.end() <= range.start());
    let Some(limit) = limits.get(limit).filter(|limit| limit.contains(range)) else { return [range; 2] };
    let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
    let after = mappings.partition_point(|mapping| mapping.range.start() < range.end());
    let end = mappings.get(after).map_or(limit.end(), |above| above.range.start()).min(limit.end());
    let below = first.checked_sub(1).map(|below| mappings[below].range);
    // Below the first of them the kernel may refuse addresses.
    let lowest =
        mappings.get(first).map_or(range.start(), |mapping| mapping.range.start().min(range.start()));
    let starts = [below.map(PageRange::start), below.map(PageRange::end)];
    starts.map(|start| PageRange::trusted(start.unwrap_or(lowest).max(limit.start()), end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::page_size;
    use crate::maps::{Memory, Object};

    fn pages(start: usize, end: usize) -> PageRange {
        PageRange::trusted(start * page_size(), end * page_size())
    }

    fn mapped(start: usize, end: usize) -> Mapping {
        let memory = Memory { object: Object::Anonymous, shared: false };
        Mapping { range: pages(start, end), memory, protection: 0, page_size: None }
    }

    #[test]
    fn it_ends_where_others_begin() {
        let mappings = [mapped(10, 12), mapped(20, 24), mapped(24, 25), mapped(40, 44)];
        let all = [pages(1, 100)];
        for (range, rooms) in [
            (pages(10, 12), [pages(10, 20), pages(10, 20)]),
            (pages(20, 24), [pages(10, 24), pages(12, 24)]),
            (pages(24, 25), [pages(20, 40), pages(24, 40)]),
            (pages(20, 25), [pages(10, 40), pages(12, 40)]),
            (pages(40, 44), [pages(24, 100), pages(25, 100)]),
            // A mapping that has grown is taken whole, and memory that is gone with what is free around it.
            (pages(21, 23), [pages(10, 24), pages(12, 24)]),
            (pages(30, 31), [pages(24, 40), pages(25, 40)]),
        ] {
            assert_eq!(around(range, &mappings, &all), rooms, "{range:?}");
        }
    }

    #[test]
    fn it_is_within_what_was_asked_for() {
        let mappings = [mapped(20, 24), mapped(40, 44)];
        let limits = [pages(18, 22), pages(39, 41), pages(42, 50)];
        assert_eq!(around(pages(20, 22), &mappings, &limits), [pages(20, 22); 2]);
        assert_eq!(around(pages(40, 41), &mappings, &limits), [pages(39, 41); 2]);
        assert_eq!(around(pages(42, 44), &mappings, &limits), [pages(42, 50); 2]);
        assert_eq!(around(pages(22, 24), &mappings, &limits), [pages(22, 24); 2]);
        assert_eq!(around(pages(20, 24), &mappings, &[]), [pages(20, 24); 2]);
    }

    #[test]
    fn all_but_what_refuses_is_done_in_few_steps() {
        let mappings: Vec<_> = (0..1000).map(|number| mapped(10 * number + 10, 10 * number + 15)).collect();
        let refuses = pages(5010, 5015);
        let (mut done, mut steps) = (Vec::new(), 0);
        each(&mappings, 20_000 * page_size(), |_| false, &mut |span| {
            steps += 1;
            let succeeds = span.intersection(refuses).is_none();
            if succeeds {
                done.push(span);
            }
            succeeds
        });
        let left = pages(10, 20_000).without(done);
        assert_eq!(left, [pages(5010, 5020)]);
        assert!(steps < 30, "{steps}");
    }

    #[test]
    fn what_is_free_beside_what_cannot_be_watched_is_done_with_the_rest() {
        let mappings = [mapped(10, 12), mapped(20, 24), mapped(30, 34), mapped(40, 44), mapped(50, 51)];
        let cannot = |mapping: &Mapping| [20, 50].contains(&(mapping.range.start() / page_size()));
        let mut done = Vec::new();
        each(&mappings, 100 * page_size(), cannot, &mut |span| {
            done.push(span);
            true
        });
        assert_eq!(done, [pages(10, 20), pages(24, 50)]);
    }
}
