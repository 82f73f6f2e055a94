// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring in the guest's memory, written by us.
//!
//! Invariant: whatever the guest writes to it, at any time, nothing outside of the range that was validated
//! at registration is written, nothing here panics or waits, and an entry that does not fit is reported. The
//! head is our own copy; the tail is the guest's word, and believed only if the ring could be so full.

use std::sync::atomic::Ordering;

use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::abi;

/// There is no room, or the guest says what cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// A registered ring.
#[derive(Debug)]
pub struct GuestRing {
    memory: GuestMemoryMmap,
    base: GuestAddress,
    entries: u32,
    head: u32,
}

impl GuestRing {
    /// Take the guest's word for where its ring is, if it can be there.
    pub fn new(memory: &GuestMemoryMmap, base: u64, entries: u64) -> Option<Self> {
        if !base.is_multiple_of(4096) || !entries.is_power_of_two() || entries > abi::MAX_ENTRIES {
            return None;
        }
        let bytes = usize::try_from(abi::ENTRIES_OFFSET + entries * 8).ok()?;
        let base = GuestAddress(base);
        let entries = u32::try_from(entries).ok()?;
        memory.check_range(base, bytes).then(|| Self { memory: memory.clone(), base, entries, head: 0 })
    }

    /// Append an entry; it is seen after [`GuestRing::publish`].
    pub fn push(&mut self, entry: u64) -> Result<(), Full> {
        let tail: u32 = self.memory.load(self.at(abi::TAIL_OFFSET), Ordering::Acquire).map_err(|_| Full)?;
        if self.head.wrapping_sub(tail) >= self.entries {
            return Err(Full);
        }
        let slot = u64::from(self.head & (self.entries - 1));
        self.memory
            .store(entry, self.at(abi::ENTRIES_OFFSET + slot * 8), Ordering::Relaxed)
            .map_err(|_| Full)?;
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    /// Show the guest what was appended.
    pub fn publish(&self) -> Result<(), Full> {
        self.memory.store(self.head, self.base, Ordering::Release).map_err(|_| Full)
    }

    /// An offset in the ring; the sum cannot wrap, as the range was checked.
    fn at(&self, offset: u64) -> GuestAddress {
        self.base.unchecked_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 20;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE as usize)]).unwrap()
    }

    #[test]
    fn what_cannot_be_a_ring_is_refused() {
        let memory = memory();
        let refused = [
            (1, 512),
            (0, 0),
            (0, 3),
            (0, abi::MAX_ENTRIES * 2),
            (0, abi::MAX_ENTRIES),
            (SIZE, 1),
            (SIZE - 4096, 1),
            (u64::MAX - 4095, 512),
            (0, 1 << 63),
        ];
        for (base, entries) in refused {
            assert!(GuestRing::new(&memory, base, entries).is_none(), "{base:#x} {entries}");
        }
        assert!(GuestRing::new(&memory, SIZE - 8192, 512).is_some());
    }

    #[test]
    fn entries_come_in_order_and_a_full_ring_says_so() {
        let memory = memory();
        let mut ring = GuestRing::new(&memory, 4096, 4).unwrap();
        for entry in 0..4 {
            ring.push(entry).unwrap();
        }
        assert_eq!(ring.push(4), Err(Full));
        assert_eq!(memory.read_obj::<u32>(GuestAddress(4096)).unwrap(), 0);
        ring.publish().unwrap();
        assert_eq!(memory.read_obj::<u32>(GuestAddress(4096)).unwrap(), 4);
        memory.write_obj(1_u32, GuestAddress(4096 + abi::TAIL_OFFSET)).unwrap();
        ring.push(4).unwrap();
        let at = |slot: u64| GuestAddress(4096 + abi::ENTRIES_OFFSET + slot * 8);
        let found: Vec<u64> = (0..4).map(|slot| memory.read_obj(at(slot)).unwrap()).collect();
        assert_eq!(found, [4, 1, 2, 3]);
    }

    /// What surrounds the ring after the guest did its worst.
    fn is_untouched_outside(memory: &GuestMemoryMmap, base: u64, entries: u64) -> bool {
        let mut all = vec![0_u8; SIZE as usize];
        memory.read_slice(&mut all, GuestAddress(0)).unwrap();
        let before = &all[..base as usize];
        let behind = &all[(base + abi::ENTRIES_OFFSET + entries * 8) as usize..];
        [before, behind].iter().all(|part| *part == vec![0xa5; part.len()])
    }

    fn filled() -> GuestMemoryMmap {
        let memory = memory();
        memory.write_slice(&vec![0xa5; SIZE as usize], GuestAddress(0)).unwrap();
        memory
    }

    proptest! {
        #[test]
        fn nothing_outside_is_written(
            page in 0_u64..256,
            order in 0_u32..12,
            start in any::<u32>(),
            tails in proptest::collection::vec(any::<u32>(), 1..64),
        ) {
            let memory = filled();
            let (base, entries) = (page * 4096, 1 << order);
            if let Some(mut ring) = GuestRing::new(&memory, base, entries) {
                ring.head = start;
                for tail in tails {
                    // The guest rewrites all of its ring, the head too.
                    memory.write_obj(tail, GuestAddress(base)).unwrap();
                    memory.write_obj(tail, GuestAddress(base + abi::TAIL_OFFSET)).unwrap();
                    let free = ring.head.wrapping_sub(tail) < entries as u32;
                    prop_assert_eq!(ring.push(u64::MAX).is_ok(), free);
                    ring.publish().unwrap();
                }
                prop_assert!(is_untouched_outside(&memory, base, entries));
            }
        }
    }

    /// The negative control: a ring that believes the guest, with an index that is not masked.
    #[test]
    fn an_unmasked_index_is_caught() {
        let memory = filled();
        let mut ring = GuestRing::new(&memory, 4096, 4).unwrap();
        ring.entries = 1 << 10;
        ring.head = 900;
        memory.write_obj(900_u32, GuestAddress(4096 + abi::TAIL_OFFSET)).unwrap();
        ring.push(u64::MAX).unwrap();
        assert!(!is_untouched_outside(&memory, 4096, 4));
    }
}
