// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device's side of a split virtqueue, without indirect descriptors and event indices, which are not offered.
//!
//! The rings are the guest's. Indices that this side advances are kept here and never read back, so a guest that
//! changes them confuses itself only. A chain is taken as a whole or not at all: all of its buffers are memory, what
//! the device may write comes after what it may read, and it ends.

use std::sync::atomic::{Ordering, fence};

use thiserror::Error;

use super::ram::{Ram, Segment};

/// The most descriptors of a queue, and so of a chain.
pub const SIZE_MAX: u16 = 256;
/// What a chain may have in all: lengths in the used ring have 32 bits.
const CHAIN_BYTES_MAX: u64 = u32::MAX as u64;

pub(super) const DESCRIPTOR_SIZE: u64 = 16;
pub(super) const USED_ELEMENT_SIZE: u64 = 8;
/// Flags and index, before each ring's elements.
pub(super) const RING_HEADER: u64 = 4;
pub(super) const RING_INDEX: u64 = 2;

/// struct vring_desc's flags
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;
/// struct vring_avail's flags
pub(super) const NO_INTERRUPT: u16 = 1;

/// What a guest did that the specification forbids.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// A ring or a descriptor is not in memory, or not aligned.
    #[error("a ring of it is not in the guest's memory, or not aligned")]
    Ring,
    /// More is available than the queue has descriptors.
    #[error("its available ring has more entries than the queue")]
    TooManyAvailable,
    /// A descriptor's number.
    #[error("it has no descriptor {0}")]
    NoDescriptor(u16),
    /// A buffer.
    #[error("a buffer of {length} bytes at {address:#x} is not in the guest's memory")]
    Buffer {
        /// Guest-physical.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Indirect descriptors.
    #[error("it has an indirect descriptor, which was not offered")]
    Indirect,
    /// The order in a chain.
    #[error("a buffer to read comes after one to write")]
    Order,
    /// A loop, or more than 4 GiB.
    #[error("a chain does not end")]
    Endless,
    /// What every request has.
    #[error("a request lacks its header, or room for its answer")]
    Malformed,
}

/// A chain of buffers that the guest gives.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its first descriptor, to give it back by.
    pub head: u16,
    /// What the device may read.
    pub readable: Vec<Segment>,
    /// What the device may write.
    pub writable: Vec<Segment>,
}

impl Chain {
    /// The request, of which the first `header` bytes are not data.
    ///
    /// # Errors
    /// It is shorter.
    pub fn request(&self, header: usize) -> Result<(Vec<Segment>, Vec<Segment>), Broken> {
        split(&self.readable, header).ok_or(Broken::Malformed)
    }

    /// The room for the answer, of which the last `status` bytes are not data.
    ///
    /// # Errors
    /// It is shorter.
    pub fn answer(&self, status: usize) -> Result<(Vec<Segment>, Vec<Segment>), Broken> {
        let data = length(&self.writable).checked_sub(status).ok_or(Broken::Malformed)?;
        split(&self.writable, data).ok_or(Broken::Malformed)
    }
}

/// How many bytes segments have; of a chain's it is less than 4 GiB.
pub fn length(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::len).sum()
}

/// The first `at` bytes of segments, and the rest; none if there are fewer.
pub fn split(segments: &[Segment], at: usize) -> Option<(Vec<Segment>, Vec<Segment>)> {
    let (mut first, mut rest, mut left) = (Vec::new(), Vec::new(), at);
    for segment in segments {
        let (before, behind) = segment.split(left);
        left -= before.len();
        first.extend((before.len() > 0).then_some(before));
        rest.extend((behind.len() > 0).then_some(behind));
    }
    (left == 0).then_some((first, rest))
}

/// A queue. The guest sets the public fields while it is not ready.
#[derive(Debug, Default)]
pub struct Queue {
    /// A power of two, at most `SIZE_MAX`.
    pub size: u16,
    /// It may be used.
    pub ready: bool,
    /// Guest-physical address of the descriptors.
    pub descriptors: u64,
    /// Guest-physical address of the ring of what the guest gives.
    pub available: u64,
    /// Guest-physical address of the ring of what the device gives back.
    pub used: u64,
    next_available: u16,
    next_used: u16,
}

impl Queue {
    /// The next chain, which stays the next one until `advance`; none if there is none.
    ///
    /// # Errors
    /// The guest breaks a rule.
    pub fn peek(&self, ram: &Ram) -> Result<Option<Chain>, Broken> {
        if !self.ready {
            return Ok(None);
        }
        let index = self.load16(ram, self.available, RING_INDEX)?;
        let waiting = index.wrapping_sub(self.next_available);
        if waiting > self.size {
            return Err(Broken::TooManyAvailable);
        }
        if waiting == 0 {
            return Ok(None);
        }
        // What the guest wrote before it advanced the index.
        fence(Ordering::Acquire);
        let entry = RING_HEADER + 2 * u64::from(self.next_available % self.size);
        let head = self.load16(ram, self.available, entry)?;
        self.chain(ram, head).map(Some)
    }

    /// The chain that `peek` returned is taken.
    pub fn advance(&mut self) {
        self.next_available = self.next_available.wrapping_add(1);
    }

    fn chain(&self, ram: &Ram, head: u16) -> Result<Chain, Broken> {
        let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
        let mut next = Some(head);
        let mut total = 0;
        for _ in 0..self.size {
            let Some(number) = next else { break };
            if number >= self.size {
                return Err(Broken::NoDescriptor(number));
            }
            let at = self.descriptors.checked_add(DESCRIPTOR_SIZE * u64::from(number)).ok_or(Broken::Ring)?;
            let address = ram.load64(at).ok_or(Broken::Ring)?;
            let length = ram.load32(at + 8).ok_or(Broken::Ring)?;
            let flags = ram.load16(at + 12).ok_or(Broken::Ring)?;
            if flags & INDIRECT != 0 {
                return Err(Broken::Indirect);
            }
            let buffer = ram.segment(address, length as usize).ok_or(Broken::Buffer { address, length })?;
            total += u64::from(length);
            if flags & WRITE != 0 {
                chain.writable.push(buffer);
            } else if chain.writable.is_empty() {
                chain.readable.push(buffer);
            } else {
                return Err(Broken::Order);
            }
            next = match flags & NEXT {
                0 => None,
                _ => Some(ram.load16(at + 14).ok_or(Broken::Ring)?),
            };
        }
        if next.is_some() || total > CHAIN_BYTES_MAX {
            return Err(Broken::Endless);
        }
        Ok(chain)
    }

    /// Give a chain back, of which the device has written `written` bytes.
    ///
    /// # Errors
    /// The guest breaks a rule.
    pub fn give_back(&mut self, ram: &Ram, head: u16, written: u32) -> Result<(), Broken> {
        let entry = RING_HEADER + USED_ELEMENT_SIZE * u64::from(self.next_used % self.size);
        let at = self.used.checked_add(entry).ok_or(Broken::Ring)?;
        let index = self.used.checked_add(RING_INDEX).ok_or(Broken::Ring)?;
        if !ram.store32(at, head.into()) || !ram.store32(at + 4, written) {
            return Err(Broken::Ring);
        }
        self.next_used = self.next_used.wrapping_add(1);
        // The buffers and the entry, before the index.
        fence(Ordering::Release);
        if ram.store16(index, self.next_used) { Ok(()) } else { Err(Broken::Ring) }
    }

    /// Whether the guest wants to be interrupted for what was given back.
    ///
    /// # Errors
    /// The guest breaks a rule.
    pub fn wants_interrupt(&self, ram: &Ram) -> Result<bool, Broken> {
        // The index, before the flags: a guest that enables interrupts looks at the index after that.
        fence(Ordering::SeqCst);
        Ok(self.load16(ram, self.available, 0)? & NO_INTERRUPT == 0)
    }

    fn load16(&self, ram: &Ram, ring: u64, offset: u64) -> Result<u16, Broken> {
        ring.checked_add(offset).and_then(|at| ram.load16(at)).ok_or(Broken::Ring)
    }
}

/// A guest's side of a queue, for tests.
#[cfg(test)]
pub mod driver {
    use super::*;

    pub const DESCRIPTORS: u64 = 0x1000;
    pub const AVAILABLE: u64 = 0x2000;
    pub const USED: u64 = 0x3000;
    /// Where buffers are.
    pub const BUFFERS: u64 = 0x4000;

    pub fn ram(size: usize) -> Ram {
        use crate::mapping::Mapping;
        Ram::new(std::sync::Arc::new(Mapping::anonymous(size, libc::MAP_PRIVATE).unwrap()))
    }

    pub fn queue(size: u16) -> Queue {
        Queue {
            size,
            ready: true,
            descriptors: DESCRIPTORS,
            available: AVAILABLE,
            used: USED,
            ..Queue::default()
        }
    }

    pub fn put(ram: &Ram, address: u64, bytes: &[u8]) {
        assert_eq!(ram.copy_to(&[ram.segment(address, bytes.len()).unwrap()], bytes), bytes.len());
    }

    pub fn get(ram: &Ram, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(ram.copy_from(&[ram.segment(address, length).unwrap()], &mut bytes));
        bytes
    }

    pub fn describe(ram: &Ram, number: u16, address: u64, length: u32, flags: u16, next: u16) {
        let at = DESCRIPTORS + DESCRIPTOR_SIZE * u64::from(number);
        assert!(ram.store32(at, address as u32) && ram.store32(at + 4, (address >> 32) as u32));
        assert!(ram.store32(at + 8, length) && ram.store16(at + 12, flags) && ram.store16(at + 14, next));
    }

    /// Make a chain available from descriptor 0 on, of (address, length, whether the device writes).
    pub fn give(ram: &Ram, queue: &Queue, buffers: &[(u64, u32, bool)]) {
        for (number, &(address, length, write)) in buffers.iter().enumerate() {
            let number = number as u16;
            let last = usize::from(number) + 1 == buffers.len();
            let flags = if write { WRITE } else { 0 } | if last { 0 } else { NEXT };
            describe(ram, number, address, length, flags, number + 1);
        }
        make_available(ram, queue, 0);
    }

    pub fn make_available(ram: &Ram, queue: &Queue, head: u16) {
        let index = ram.load16(queue.available + RING_INDEX).unwrap();
        let entry = queue.available + RING_HEADER + 2 * u64::from(index % queue.size);
        assert!(ram.store16(entry, head));
        assert!(ram.store16(queue.available + RING_INDEX, index.wrapping_add(1)));
    }

    /// The used ring's index, and head and length of its last entry.
    pub fn last_used(ram: &Ram, queue: &Queue) -> (u16, u32, u32) {
        let index = ram.load16(queue.used + RING_INDEX).unwrap();
        let entry = RING_HEADER + USED_ELEMENT_SIZE * u64::from(index.wrapping_sub(1) % queue.size);
        (index, ram.load32(queue.used + entry).unwrap(), ram.load32(queue.used + entry + 4).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::driver::{
        AVAILABLE, BUFFERS, DESCRIPTORS, USED, describe, give, last_used, make_available, ram,
    };
    use super::*;
    use proptest::prelude::*;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::{Queue as Witness, QueueOwnedT, QueueT};
    use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

    const SIZE: usize = 0x1_0000;

    #[test]
    fn a_chain_goes_there_and_back() {
        let (ram, mut queue) = (ram(SIZE), driver::queue(8));
        assert_eq!(queue.peek(&ram), Ok(None));
        give(&ram, &queue, &[(BUFFERS, 16, false), (BUFFERS + 16, 512, true), (BUFFERS + 600, 1, true)]);
        let chain = queue.peek(&ram).unwrap().unwrap();
        assert_eq!(chain, queue.peek(&ram).unwrap().unwrap());
        let segment = |address, length| ram.segment(address, length).unwrap();
        assert_eq!(chain.readable, [segment(BUFFERS, 16)]);
        assert_eq!(chain.writable, [segment(BUFFERS + 16, 512), segment(BUFFERS + 600, 1)]);
        queue.advance();
        assert_eq!(queue.peek(&ram), Ok(None));
        queue.give_back(&ram, chain.head, 513).unwrap();
        assert_eq!(last_used(&ram, &queue), (1, 0, 513));
        assert_eq!(queue.wants_interrupt(&ram), Ok(true));
        assert!(ram.store16(AVAILABLE, NO_INTERRUPT));
        assert_eq!(queue.wants_interrupt(&ram), Ok(false));
    }

    #[test]
    fn requests_do_not_depend_on_how_they_are_cut() {
        let (ram, queue) = (ram(SIZE), driver::queue(8));
        let cut = [
            (0x4000, 10, false),
            (0x5000, 10, false),
            (0x6000, 0, true),
            (0x7000, 3, true),
            (0x8000, 2, true),
        ];
        give(&ram, &queue, &cut);
        let chain = queue.peek(&ram).unwrap().unwrap();
        let segment = |address, length| ram.segment(address, length).unwrap();
        let header = vec![segment(0x4000, 10), segment(0x5000, 6)];
        assert_eq!(chain.request(16), Ok((header, vec![segment(0x5006, 4)])));
        assert_eq!(chain.request(20), Ok((chain.readable.clone(), vec![])));
        assert_eq!(chain.request(21), Err(Broken::Malformed));
        let data = vec![segment(0x7000, 3), segment(0x8000, 1)];
        assert_eq!(chain.answer(1), Ok((data, vec![segment(0x8001, 1)])));
        assert_eq!(chain.answer(6), Err(Broken::Malformed));
    }

    #[test]
    fn indices_wrap_around() {
        let (ram, mut queue) = (ram(SIZE), driver::queue(4));
        describe(&ram, 3, BUFFERS, 1, 0, 0);
        for round in 1..=0x1_0003u32 {
            make_available(&ram, &queue, 3);
            let chain = queue.peek(&ram).unwrap().unwrap();
            queue.advance();
            queue.give_back(&ram, chain.head, round).unwrap();
            assert_eq!(last_used(&ram, &queue), (round as u16, 3, round));
        }
    }

    #[test]
    fn broken_rings_are_refused() {
        let fresh = || (ram(SIZE), driver::queue(4));
        let peeked = |ram: &Ram, queue: &Queue| queue.peek(ram).unwrap_err();

        let (ram, queue) = fresh();
        assert!(ram.store16(AVAILABLE + 2, 5));
        assert_eq!(peeked(&ram, &queue), Broken::TooManyAvailable);

        let (ram, queue) = fresh();
        make_available(&ram, &queue, 4);
        assert_eq!(peeked(&ram, &queue), Broken::NoDescriptor(4));

        let (ram, queue) = fresh();
        describe(&ram, 0, BUFFERS, 1, NEXT, 1);
        describe(&ram, 1, BUFFERS, 1, NEXT, 0);
        make_available(&ram, &queue, 0);
        assert_eq!(peeked(&ram, &queue), Broken::Endless);

        let (ram, queue) = fresh();
        give(&ram, &queue, &[(BUFFERS, 1, true), (BUFFERS, 1, false)]);
        assert_eq!(peeked(&ram, &queue), Broken::Order);

        let (ram, queue) = fresh();
        describe(&ram, 0, BUFFERS, 16, INDIRECT, 0);
        make_available(&ram, &queue, 0);
        assert_eq!(peeked(&ram, &queue), Broken::Indirect);

        for (address, length) in [(SIZE as u64 - 1, 2), (1 << 32, 1), (u64::MAX, 1), (1, u32::MAX)] {
            let (ram, queue) = fresh();
            give(&ram, &queue, &[(address, length, true)]);
            assert_eq!(peeked(&ram, &queue), Broken::Buffer { address, length });
        }

        let far = [SIZE as u64, u64::MAX - 1, 1 << 32, 1];
        for at in far {
            let (ram, queue) = fresh();
            assert_eq!(peeked(&ram, &Queue { available: at, ..queue }), Broken::Ring);
            let (ram, mut queue) = fresh();
            make_available(&ram, &queue, 0);
            queue.descriptors = at;
            assert_eq!(peeked(&ram, &queue), Broken::Ring);
            let (ram, mut queue) = fresh();
            queue.used = at;
            assert_eq!(queue.give_back(&ram, 0, 0), Err(Broken::Ring));
        }
    }

    /// A chain's buffers: address, length, whether the device writes.
    type Buffers = Vec<(u64, u32, bool)>;

    /// What virtio-queue makes of the same bytes: a chain's buffers, if it keeps the rules.
    fn witness(bytes: &[u8], size: u16) -> Result<Option<Buffers>, ()> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), SIZE)]).unwrap();
        memory.write_slice(bytes, GuestAddress(0)).unwrap();
        let mut queue = Witness::new(SIZE_MAX).unwrap();
        queue.set_size(size);
        queue.set_desc_table_address(Some(DESCRIPTORS as u32), None);
        queue.set_avail_ring_address(Some(AVAILABLE as u32), None);
        queue.set_used_ring_address(Some(USED as u32), None);
        queue.set_ready(true);
        let Some(chain) = queue.iter(&memory).map_err(drop)?.next() else { return Ok(None) };
        // It returns what it can; what it could not is an error here.
        let mut found: Buffers = Vec::new();
        let mut last: Option<Descriptor> = None;
        if chain.head_index() >= size {
            return Err(());
        }
        for descriptor in chain {
            let write = descriptor.is_write_only();
            // vm-memory calls an empty range inside wherever it lies.
            let inside = match descriptor.len() {
                0 => descriptor.addr().raw_value() <= SIZE as u64,
                length => memory.check_range(descriptor.addr(), length as usize),
            };
            let ordered = write || found.last().is_none_or(|before| !before.2);
            if !inside || !ordered {
                return Err(());
            }
            found.push((descriptor.addr().raw_value(), descriptor.len(), write));
            last = Some(descriptor);
        }
        if last.is_none_or(|last| last.has_next()) { Err(()) } else { Ok(Some(found)) }
    }

    fn ours(bytes: &[u8], size: u16) -> Result<Option<Buffers>, ()> {
        let ram = ram(SIZE);
        driver::put(&ram, 0, bytes);
        let Some(chain) = driver::queue(size).peek(&ram).map_err(drop)? else { return Ok(None) };
        let start = ram.iovec(ram.segment(0, 0).unwrap()).iov_base as usize;
        let listed = |segments: &[Segment], write| -> Vec<_> {
            let places = segments.iter().map(|&segment| ram.iovec(segment));
            places
                .map(|place| ((place.iov_base as usize - start) as u64, place.iov_len as u32, write))
                .collect()
        };
        Ok(Some([listed(&chain.readable, false), listed(&chain.writable, true)].concat()))
    }

    /// A descriptor: mostly one that could be right.
    fn descriptor() -> impl Strategy<Value = [u8; 16]> {
        let end = SIZE as u64;
        let address = prop_oneof![8 => 0..end, 1 => end - 2..end + 2, 1 => any::<u64>()];
        let length = prop_oneof![8 => 0u32..0x1000, 1 => 0u32..2, 1 => any::<u32>()];
        let flags = prop_oneof![12 => 0u16..4, 1 => any::<u16>()];
        let next = prop_oneof![12 => 0u16..8, 1 => any::<u16>()];
        (address, length, flags, next).prop_map(|(address, length, flags, next)| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&address.to_le_bytes());
            bytes[8..12].copy_from_slice(&length.to_le_bytes());
            // virtio-queue follows indirect descriptors; they are refused here.
            bytes[12..14].copy_from_slice(&(flags & !INDIRECT).to_le_bytes());
            bytes[14..].copy_from_slice(&next.to_le_bytes());
            bytes
        })
    }

    fn image(table: &[[u8; 16]], index: u16, heads: &[u16]) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        bytes[DESCRIPTORS as usize..][..16 * table.len()].copy_from_slice(&table.concat());
        bytes[AVAILABLE as usize + 2..][..2].copy_from_slice(&index.to_le_bytes());
        for (number, head) in heads.iter().enumerate() {
            bytes[AVAILABLE as usize + 4 + 2 * number..][..2].copy_from_slice(&head.to_le_bytes());
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn chains_are_what_virtio_queue_sees(
            table in prop::collection::vec(descriptor(), 8),
            index in prop_oneof![8 => 0u16..10, 1 => any::<u16>()],
            head in prop_oneof![12 => 0u16..8, 1 => any::<u16>()],
        ) {
            let bytes = image(&table, index, &[head]);
            prop_assert_eq!(ours(&bytes, 8), witness(&bytes, 8));
        }

        #[test]
        fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0x400), size in 0u32..9) {
            let (ram, mut queue) = (ram(SIZE), driver::queue(1 << size));
            for page in [DESCRIPTORS, AVAILABLE, USED] {
                driver::put(&ram, page, &bytes);
            }
            for _ in 0..queue.size {
                let Ok(Some(chain)) = queue.peek(&ram) else { break };
                queue.advance();
                prop_assert!(chain.head < queue.size);
                prop_assert!(queue.give_back(&ram, chain.head, 1).is_ok());
            }
        }
    }

    /// The comparison sees each thing that it compares.
    #[test]
    fn the_witness_can_disagree() {
        let (ram, queue) = (ram(SIZE), driver::queue(8));
        give(&ram, &queue, &[(BUFFERS, 16, false), (BUFFERS + 16, 512, true)]);
        let bytes = driver::get(&ram, 0, SIZE);
        let right = witness(&bytes, 8);
        assert_eq!(right, Ok(Some(vec![(BUFFERS, 16, false), (BUFFERS + 16, 512, true)])));
        assert_eq!(ours(&bytes, 8), right);
        let at = DESCRIPTORS as usize;
        // An address, a length, the direction, the end, the next one, the index, the head.
        for (place, value) in
            [(0, 1), (9, 1), (12, 3), (12, 0), (14, 2), (0x1002, 0), (0x1002, 9), (0x1004, 8)]
        {
            let mut other = bytes.clone();
            other[at + place] = value;
            assert_ne!(witness(&other, 8), right, "{place:#x}");
            assert_eq!(ours(&other, 8), witness(&other, 8), "{place:#x}");
        }
    }
}
