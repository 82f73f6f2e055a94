// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sequences of calls and writes against a model of the log: what a guest that reads its ring as the interface
//! says must find, and what a guest that does anything else must not achieve.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;

const FRAMES: u64 = 256;
const RING: u64 = 8 * 4096;

/// A log that holds so many entries, then stops the vCPU until it is emptied.
#[derive(Debug, Default)]
struct Model {
    on: bool,
    logged: Vec<u64>,
    taken: BTreeSet<u64>,
    fails: bool,
}

impl Model {
    /// A write by a vCPU. True if the log is now full.
    fn write(&mut self, frame: u64) -> bool {
        if self.on && !self.taken.contains(&frame) && !self.logged.contains(&frame) {
            self.logged.push(frame);
        }
        self.logged.len() >= 16
    }
}

impl Log for Rc<RefCell<Model>> {
    fn set_logging(&mut self, on: bool) -> io::Result<()> {
        let mut model = self.borrow_mut();
        if model.fails {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        model.on = on;
        Ok(())
    }

    fn harvest(&mut self, take: &mut dyn FnMut(u64)) -> bool {
        let mut model = self.borrow_mut();
        for frame in std::mem::take(&mut model.logged) {
            model.taken.insert(frame);
            take(frame);
        }
        true
    }

    fn rearm(&mut self) -> io::Result<()> {
        let mut model = self.borrow_mut();
        if model.fails {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        model.taken.clear();
        Ok(())
    }
}

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), (FRAMES * 4096) as usize)]).unwrap()
}

/// A guest that keeps to the interface.
struct Guest {
    memory: GuestMemoryMmap,
    model: Rc<RefCell<Model>>,
    forwarder: Forwarder<Rc<RefCell<Model>>>,
    entries: u64,
    tail: u32,
    expected: BTreeSet<u64>,
    missed: usize,
    overruns: usize,
}

impl Guest {
    fn new(entries: u64) -> Self {
        let (memory, model) = (memory(), Rc::new(RefCell::new(Model::default())));
        let mut forwarder = Forwarder::new(Rc::clone(&model), memory.clone());
        assert_eq!(forwarder.call(abi::REGISTER_RING, RING, entries), abi::OK);
        assert_eq!(forwarder.call(abi::ENABLE, 1, 0), abi::OK);
        Self { memory, model, forwarder, entries, tail: 0, expected: BTreeSet::new(), missed: 0, overruns: 0 }
    }

    fn write(&mut self, frame: u64) {
        let full = self.model.borrow_mut().write(frame);
        self.expected.insert(frame);
        if full {
            self.forwarder.log_is_full();
        }
    }

    fn drain(&mut self) {
        let result = self.forwarder.call(abi::DRAIN, 0, 0);
        let head: u32 = self.memory.read_obj(GuestAddress(RING)).unwrap();
        let mut found = BTreeSet::new();
        while self.tail != head {
            let slot = u64::from(self.tail) % self.entries;
            let at = GuestAddress(RING + abi::ENTRIES_OFFSET + slot * 8);
            found.insert(self.memory.read_obj::<u64>(at).unwrap());
            self.tail = self.tail.wrapping_add(1);
        }
        self.memory.write_obj(self.tail, GuestAddress(RING + abi::TAIL_OFFSET)).unwrap();
        if result == abi::OK {
            self.missed += self.expected.difference(&found).count();
        } else {
            self.overruns += 1;
        }
        self.expected.clear();
    }
}

proptest! {
    #[test]
    fn nothing_is_missed(order in 0_u32..10, steps in proptest::collection::vec(0_u64..FRAMES + 24, 1..600)) {
        let mut guest = Guest::new(1 << order);
        for step in steps {
            if step < FRAMES { guest.write(step) } else { guest.drain() }
        }
        guest.drain();
        prop_assert_eq!(guest.missed, 0);
    }

    /// Any function with any argument, between the writes of a guest that overwrites its ring.
    #[test]
    fn a_malicious_guest_harms_only_itself(
        calls in proptest::collection::vec(
            (0_u32..9, prop_oneof![0..FRAMES, 0..FRAMES * 4096, any::<u64>()],
             prop_oneof![(0_u32..64).prop_map(|order| 1 << order), any::<u64>()], any::<u32>()),
            1..200,
        ),
    ) {
        let (memory, model) = (memory(), Rc::new(RefCell::new(Model::default())));
        let mut forwarder = Forwarder::new(Rc::clone(&model), memory.clone());
        for (function, first, second, word) in calls {
            let result = forwarder.call(function, first, second);
            prop_assert!((abi::FAILED..=abi::OVERRUN).contains(&result));
            memory.write_obj(word, GuestAddress(u64::from(word) % (FRAMES * 1024) * 4)).unwrap();
            if model.borrow_mut().write(u64::from(word) % FRAMES) {
                forwarder.log_is_full();
            }
            prop_assert_eq!(model.borrow().on, !forwarder.enabled.is_empty());
            prop_assert!(forwarder.enabled.is_empty() || forwarder.ring.is_some());
            prop_assert!(forwarder.enabled.len() <= abi::MAX_PROCESSES as usize);
        }
    }
}

#[test]
fn a_ring_that_is_too_small_is_reported_once() {
    let mut guest = Guest::new(4);
    (0..5).for_each(|frame| guest.write(frame));
    guest.drain();
    assert_eq!((guest.missed, guest.overruns), (0, 1));
    guest.write(7);
    guest.drain();
    assert_eq!((guest.missed, guest.overruns), (0, 1));
}

#[test]
fn a_host_that_cannot_protect_again_is_never_believed() {
    let mut guest = Guest::new(512);
    guest.model.borrow_mut().fails = true;
    guest.write(1);
    guest.drain();
    guest.model.borrow_mut().fails = false;
    guest.drain();
    assert_eq!((guest.missed, guest.overruns), (0, 2));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let model = Rc::new(RefCell::new(Model::default()));
    let mut forwarder = Forwarder::new(Rc::clone(&model), memory());
    assert_eq!(forwarder.call(abi::ENABLE, 1, 0), abi::NO_RING);
    assert_eq!(forwarder.call(abi::DRAIN, 0, 0), abi::NO_RING);
    assert_eq!(forwarder.call(abi::REGISTER_RING, RING, 8), abi::OK);
    assert_eq!(forwarder.call(abi::ENABLE, abi::MAX_PROCESSES, 0), abi::INVALID);
    assert_eq!(forwarder.call(abi::DISABLE, 1, 0), abi::INVALID);
    assert_eq!(forwarder.call(0, 0, 0), abi::INVALID);
    assert!(!model.borrow().on);
    assert_eq!(forwarder.call(abi::ENABLE, 1, 0), abi::OK);
    assert_eq!(forwarder.call(abi::ENABLE, 1, 0), abi::INVALID);
    assert!(model.borrow().on);
    assert_eq!(forwarder.call(abi::UNREGISTER_RING, 0, 0), abi::OK);
    assert!(!model.borrow().on);
}
