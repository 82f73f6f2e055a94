// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's memory as devices see it: shared with a running guest, addressed by what the guest says.
//!
//! Nothing here makes a reference to the guest's bytes. Fields of rings are atomic, and buffers are given to the
//! host's kernel as addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use libc::iovec;

use crate::mapping::Mapping;

/// Memory from guest-physical address 0 on.
#[derive(Debug, Clone)]
pub struct Ram(Arc<Mapping>);

/// A part of the guest's memory; only `Ram::segment` makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    offset: usize,
    length: usize,
}

impl Segment {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The first `length` bytes, or all, and the rest.
    pub fn split(self, length: usize) -> (Self, Self) {
        let length = length.min(self.length);
        let rest = Self { offset: self.offset + length, length: self.length - length };
        (Self { length, ..self }, rest)
    }
}

impl Ram {
    /// Share a guest's memory.
    pub fn new(memory: Arc<Mapping>) -> Self {
        Self(memory)
    }

    /// The part of the memory at a guest-physical address, if all of it is memory.
    pub fn segment(&self, address: u64, length: usize) -> Option<Segment> {
        let offset = usize::try_from(address).ok()?;
        let end = offset.checked_add(length)?;
        (end <= self.0.len()).then_some(Segment { offset, length })
    }

    /// For the host's kernel.
    pub fn iovec(&self, segment: Segment) -> iovec {
        iovec { iov_base: self.at(segment.offset).cast(), iov_len: segment.length }
    }

    /// `offset` is in the memory, or its end.
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.address().as_ptr().wrapping_add(offset)
    }

    /// An aligned object of this type at an address.
    fn object<T>(&self, address: u64) -> Option<*mut T> {
        let segment = self.segment(address, size_of::<T>())?;
        address.is_multiple_of(align_of::<T>() as u64).then(|| self.at(segment.offset).cast())
    }

    /// A field of a ring: aligned, little-endian.
    pub fn load16(&self, address: u64) -> Option<u16> {
        let at = self.object::<AtomicU16>(address)?;
        // SAFETY: it is mapped while `self` lives, aligned (the mapping begins with a page), and every bit pattern is
        // valid. Rust accesses the guest's memory in this file only, and only atomically.
        Some(u16::from_le(unsafe { &*at }.load(Ordering::Relaxed)))
    }

    /// See `load16`.
    pub fn load32(&self, address: u64) -> Option<u32> {
        let at = self.object::<AtomicU32>(address)?;
        // SAFETY: as in `load16`.
        Some(u32::from_le(unsafe { &*at }.load(Ordering::Relaxed)))
    }

    /// See `load16`; the halves may be of different times.
    pub fn load64(&self, address: u64) -> Option<u64> {
        let high = self.load32(address.checked_add(4)?)?;
        Some(u64::from(high) << 32 | u64::from(self.load32(address)?))
    }

    /// See `load16`; false, and nothing done, if there is no such field.
    pub fn store16(&self, address: u64, value: u16) -> bool {
        let Some(at) = self.object::<AtomicU16>(address) else { return false };
        // SAFETY: as in `load16`.
        unsafe { &*at }.store(value.to_le(), Ordering::Relaxed);
        true
    }

    /// See `store16`.
    pub fn store32(&self, address: u64, value: u32) -> bool {
        let Some(at) = self.object::<AtomicU32>(address) else { return false };
        // SAFETY: as in `load16`.
        unsafe { &*at }.store(value.to_le(), Ordering::Relaxed);
        true
    }

    /// Copy a few bytes from segments, which the guest may meanwhile change; false if they have fewer.
    pub fn copy_from(&self, from: &[Segment], to: &mut [u8]) -> bool {
        let mut places = from.iter().flat_map(|segment| segment.offset..segment.offset + segment.length);
        to.iter_mut().all(|byte| match places.next() {
            Some(offset) => {
                // SAFETY: as in `load16`.
                *byte = unsafe { AtomicU8::from_ptr(self.at(offset)) }.load(Ordering::Relaxed);
                true
            }
            None => false,
        })
    }

    /// Copy a few bytes to segments, as many as both have; how many.
    pub fn copy_to(&self, to: &[Segment], from: &[u8]) -> usize {
        let places = to.iter().flat_map(|segment| segment.offset..segment.offset + segment.length);
        places
            .zip(from)
            .map(|(offset, &byte)| {
                // SAFETY: as in `load16`.
                unsafe { AtomicU8::from_ptr(self.at(offset)) }.store(byte, Ordering::Relaxed);
            })
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 0x3000;

    fn ram() -> Ram {
        Ram::new(Arc::new(Mapping::anonymous(SIZE, libc::MAP_PRIVATE).unwrap()))
    }

    #[test]
    fn segments_are_memory() {
        let ram = ram();
        assert_eq!(ram.segment(0, SIZE).map(|segment| segment.len()), Some(SIZE));
        assert_eq!(ram.segment(SIZE as u64, 0).map(|segment| segment.len()), Some(0));
        for (address, length) in [(1, SIZE), (SIZE as u64, 1), (u64::MAX, 2), (2, usize::MAX), (1 << 32, 0)] {
            assert_eq!(ram.segment(address, length), None, "{address:#x} {length:#x}");
        }
        let (first, rest) = ram.segment(0x100, 16).unwrap().split(12);
        assert_eq!((Some(first), Some(rest)), (ram.segment(0x100, 12), ram.segment(0x10c, 4)));
        assert_eq!(rest.split(5), (rest, ram.segment(0x110, 0).unwrap()));
    }

    #[test]
    fn fields_are_little_endian_and_aligned() {
        let ram = ram();
        assert!(ram.store32(0x100, 0x1234_5678) && ram.store16(0x104, 0xabcd) && ram.store16(0x106, 0));
        let mut bytes = [0; 6];
        assert!(ram.copy_from(&[ram.segment(0x100, 6).unwrap()], &mut bytes));
        assert_eq!(bytes, [0x78, 0x56, 0x34, 0x12, 0xcd, 0xab]);
        assert_eq!(ram.load64(0x100), Some(0xabcd_1234_5678));
        assert_eq!((ram.load32(0x100), ram.load16(0x102)), (Some(0x1234_5678), Some(0x1234)));
        assert_eq!((ram.load16(1), ram.load32(2), ram.load64(4 + 2)), (None, None, None));
        let end = SIZE as u64;
        assert_eq!((ram.load16(end - 2), ram.load16(end), ram.load64(end - 4)), (Some(0), None, None));
        assert!(!ram.store16(end, 1) && !ram.store32(end - 2, 1) && !ram.store32(u64::MAX - 3, 1));
    }

    #[test]
    fn copies_end_with_the_shorter() {
        let ram = ram();
        let two = [ram.segment(8, 1).unwrap(), ram.segment(0, 2).unwrap()];
        assert_eq!(ram.copy_to(&two, b"abcd"), 3);
        let mut three = [0; 3];
        assert!(ram.copy_from(&[ram.segment(0, 3).unwrap()], &mut three));
        assert_eq!(&three, b"bc\0");
        assert!(ram.copy_from(&two, &mut three));
        assert_eq!(&three, b"abc");
        assert!(!ram.copy_from(&two, &mut [0; 4]));
        assert_eq!(ram.copy_to(&two, b"x"), 1);
    }
}
