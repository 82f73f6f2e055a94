// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random sequences of calls of the C functions with random handles, ranges and sizes. A model of a few lines says
//! what each must return; what was written must be read once and whole. Sequences that fail are shrunk.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use dirty::*;
use libdirty::page_size;
use proptest::prelude::*;

const PAGES: usize = 16;
const TRACKERS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Open(usize),
    Close(usize),
    Watch(usize, usize, usize),
    Unwatch(usize, usize, usize),
    Write(usize, BTreeSet<usize>),
    Collect(usize),
    Peek(usize),
    CollectRange(usize, usize, usize),
    PeekRange(usize, usize, usize),
    Read(usize, usize),
    Discard(usize),
    BadHandle(i64),
    BadRange(usize, usize, usize),
    BadRead(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let tracker = 0..TRACKERS;
    let range = (0..TRACKERS, 0..PAGES).prop_flat_map(|(t, first)| (Just(t), Just(first), 1..=PAGES - first));
    prop_oneof![
        2 => tracker.clone().prop_map(Open),
        1 => tracker.clone().prop_map(Close),
        3 => range.clone().prop_map(|(t, first, count)| Watch(t, first, count)),
        1 => range.clone().prop_map(|(t, first, count)| Unwatch(t, first, count)),
        2 => range.clone().prop_map(|(t, first, count)| CollectRange(t, first, count)),
        1 => range.prop_map(|(t, first, count)| PeekRange(t, first, count)),
        1 => tracker.clone().prop_map(Peek),
        4 => (tracker.clone(), prop::collection::btree_set(0..PAGES, 1..PAGES)).prop_map(|(t, pages)| Write(t, pages)),
        3 => tracker.clone().prop_map(Collect),
        5 => (tracker.clone(), 1..6usize).prop_map(|(t, capacity)| Read(t, capacity)),
        1 => tracker.clone().prop_map(Discard),
        1 => any::<i64>().prop_map(BadHandle),
        1 => (tracker.clone(), any::<usize>(), any::<usize>()).prop_map(|(t, start, length)| BadRange(t, start, length)),
        1 => (tracker, any::<usize>()).prop_map(|(t, capacity)| BadRead(t, capacity)),
    ]
}

/// Pages of this test's own, all of them there.
struct Arena(*mut u8);

impl Default for Arena {
    fn default() -> Self {
        let (length, access) = (PAGES * page_size(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let arena = Arena(memory.cast());
        (0..PAGES).for_each(|page| arena.write(page));
        arena
    }
}

impl Arena {
    fn write(&self, page: usize) {
        // SAFETY: within the mapping, which lives as long as `self`; volatile, for nobody reads it.
        unsafe { self.0.add(page * page_size()).write_volatile(1) };
    }

    fn address(&self, page: usize) -> usize {
        self.0 as usize + page * page_size()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `default`; no reference to it exists.
        unsafe { libc::munmap(self.0.cast(), PAGES * page_size()) };
    }
}

/// What a tracker must be like. Each has pages of its own: of two on the same, one may say that it cannot.
#[derive(Default)]
struct Model {
    arena: Rc<Arena>,
    handle: i64,
    is_open: bool,
    watched: BTreeSet<usize>,
    written: BTreeSet<usize>,
    unread: BTreeSet<usize>,
}

impl Model {
    /// What a collect or peek of `asked`, or of everything, returned.
    fn found(&mut self, found: i64, asked: Option<Range<usize>>, taken: bool) {
        let is_watched = asked.clone().into_iter().flatten().all(|page| self.watched.contains(&page));
        let asked = asked.unwrap_or(0..PAGES);
        let refused = if !self.is_open {
            libc::EBADF
        } else if !self.unread.is_empty() {
            libc::EBUSY
        } else if !is_watched {
            libc::ENOENT
        } else {
            self.unread = self.written.range(asked.clone()).copied().collect();
            // Ranges that were watched one by one may be reported one by one.
            assert!(found >= extents(&self.unread) && found <= self.unread.len() as i64);
            if taken {
                self.written.retain(|page| !asked.contains(page));
            }
            return;
        };
        assert_eq!(found, -i64::from(refused));
    }
}

/// Runs of pages in a set.
fn extents(pages: &BTreeSet<usize>) -> i64 {
    pages.iter().filter(|page| !pages.contains(&(**page + 1))).count() as i64
}

const EMPTY: Extent = Extent { start: 0, end: 0, reason: 0, reserved: 0 };

fn run(steps: &[Step]) {
    let mut models: [Model; TRACKERS] = Default::default();
    let errno =
        |model: &Model, otherwise: i32| i64::from(if model.is_open { otherwise } else { -libc::EBADF });
    for step in steps {
        match step.clone() {
            Step::Open(tracker) => {
                let model = &mut models[tracker];
                assert_eq!(i64::from(dirty_close(model.handle)), errno(model, 0));
                // SAFETY: NULL is allowed.
                let handle = unsafe { dirty_open(0, std::ptr::null(), 0) };
                assert!(handle > model.handle);
                let arena = model.arena.clone();
                *model = Model { arena, handle, is_open: true, ..Default::default() };
            }
            Step::Close(tracker) => {
                let model = &mut models[tracker];
                assert_eq!(i64::from(dirty_close(model.handle)), errno(model, 0));
                model.is_open = false;
            }
            Step::Watch(tracker, first, count) => {
                let model = &mut models[tracker];
                let pages: BTreeSet<_> = (first..first + count).collect();
                let overlap = if model.watched.is_disjoint(&pages) { 0 } else { -libc::EEXIST };
                let done = dirty_watch(model.handle, model.arena.address(first), count * page_size());
                assert_eq!(i64::from(done), errno(model, overlap));
                if done == 0 {
                    model.watched.extend(pages);
                }
            }
            Step::Unwatch(tracker, first, count) => {
                let model = &mut models[tracker];
                let pages: BTreeSet<_> = (first..first + count).collect();
                let missing = if model.watched.is_superset(&pages) { 0 } else { -libc::ENOENT };
                let done = dirty_unwatch(model.handle, model.arena.address(first), count * page_size());
                assert_eq!(i64::from(done), errno(model, missing));
                if done == 0 {
                    model.watched.retain(|page| !pages.contains(page));
                    model.written.retain(|page| !pages.contains(page));
                }
            }
            Step::Write(tracker, pages) => {
                let model = &mut models[tracker];
                pages.iter().for_each(|page| model.arena.write(*page));
                model.written.extend(pages.intersection(&model.watched));
            }
            Step::Collect(tracker) => {
                let model = &mut models[tracker];
                model.found(dirty_collect(model.handle), None, true);
            }
            Step::Peek(tracker) => {
                let model = &mut models[tracker];
                model.found(dirty_peek(model.handle), None, false);
            }
            Step::CollectRange(tracker, first, count) => {
                let model = &mut models[tracker];
                let length = count * page_size();
                let found = dirty_collect_range(model.handle, model.arena.address(first), length);
                model.found(found, Some(first..first + count), true);
            }
            Step::PeekRange(tracker, first, count) => {
                let model = &mut models[tracker];
                let length = count * page_size();
                let found = dirty_peek_range(model.handle, model.arena.address(first), length);
                model.found(found, Some(first..first + count), false);
            }
            Step::Read(tracker, capacity) => {
                let model = &mut models[tracker];
                let mut out = [EMPTY; PAGES];
                // SAFETY: the array is longer than `capacity`.
                let count = unsafe { dirty_read(model.handle, out.as_mut_ptr(), capacity) };
                if !model.is_open {
                    assert_eq!(count, -i64::from(libc::EBADF));
                    continue;
                }
                assert!(count <= capacity as i64 && (count > 0) != model.unread.is_empty());
                for extent in &out[..count as usize] {
                    assert_eq!((extent.reason, extent.reserved), (Reason::Written as u32, 0));
                    for address in (extent.start..extent.end).step_by(page_size()) {
                        let page = (address - model.arena.address(0)) / page_size();
                        assert_eq!(
                            model.unread.pop_first(),
                            Some(page),
                            "in order, none left out, none invented"
                        );
                    }
                }
                assert!(out[count as usize..].iter().all(|extent| *extent == EMPTY));
            }
            Step::Discard(tracker) => {
                let model = &mut models[tracker];
                let count = dirty_discard(model.handle);
                assert!(if model.is_open { count >= extents(&model.unread) } else { count < 0 });
                model.unread.clear();
            }
            Step::BadHandle(handle) => {
                if models.iter().any(|model| model.handle == handle) {
                    continue;
                }
                let refused = -libc::EBADF;
                assert_eq!(dirty_close(handle), refused);
                assert_eq!(dirty_collect(handle), refused.into());
                assert_eq!(dirty_watch(handle, models[0].arena.address(0), page_size()), refused);
                assert!(dirty_backend(handle).is_null());
            }
            Step::BadRange(tracker, start, length) => {
                let model = &models[tracker];
                let start = start | 1; // no page begins there
                assert_eq!(i64::from(dirty_watch(model.handle, start, length)), errno(model, -libc::EINVAL));
                assert_eq!(
                    i64::from(dirty_unwatch(model.handle, start, length)),
                    errno(model, -libc::EINVAL)
                );
                assert_eq!(dirty_collect_range(model.handle, start, length), errno(model, -libc::EINVAL));
                assert_eq!(dirty_peek_range(model.handle, start, length), errno(model, -libc::EINVAL));
            }
            Step::BadRead(tracker, capacity) => {
                let model = &models[tracker];
                let place = std::ptr::null_mut();
                // SAFETY: NULL is refused.
                let read = |place, capacity| unsafe { dirty_read(model.handle, place, capacity) };
                assert_eq!(read(place, capacity), errno(model, -libc::EFAULT));
                assert_eq!(read(std::ptr::without_provenance_mut(9), 1), errno(model, -libc::EINVAL));
                let mut out = [EMPTY; 1];
                assert_eq!(read(out.as_mut_ptr(), 0), errno(model, -libc::EINVAL));
                assert_eq!(read(out.as_mut_ptr(), capacity | 1 << 63), errno(model, -libc::EINVAL));
            }
        }
    }
    for model in models {
        assert_eq!(i64::from(dirty_close(model.handle)), errno(&model, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn every_call_returns_what_the_model_says(steps in prop::collection::vec(step(), 1..80)) {
        run(&steps);
    }
}
