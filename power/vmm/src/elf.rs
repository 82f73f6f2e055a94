// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's image. For any file the returned ranges lie within the file and within the guest's memory.

use object::BigEndian;
use object::elf::{EM_PPC, ET_DYN, ET_EXEC, FileHeader32, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use thiserror::Error;

/// A piece of the kernel.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Its physical address.
    pub address: u32,
    /// Its contents; zeros follow.
    pub data: &'a [u8],
    /// Its size including the zeros.
    pub size: u32,
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel<'a> {
    /// Its pieces.
    pub segments: Vec<Segment<'a>>,
    /// The physical address of its first instruction, in one of the pieces.
    pub entry: u32,
    /// Where the last piece ends.
    pub end: u32,
}

/// Why a file is not a kernel for this guest.
#[derive(Debug, Error)]
pub enum Error {
    /// Wrong format.
    #[error("it is not a 32-bit big-endian ELF file")]
    Format(#[from] object::read::Error),
    /// For another machine, or not a program.
    #[error("it is not a program for 32-bit PowerPC (type {kind}, machine {machine})")]
    Machine {
        /// ET_*.
        kind: u16,
        /// EM_*.
        machine: u16,
    },
    /// It has no contents.
    #[error("it has nothing to load")]
    Empty,
    /// A piece does not fit.
    #[error(
        "its segment of {size} bytes at {address:#x} does not fit into the guest's memory of {memory} bytes"
    )]
    Outside {
        /// Physical.
        address: u32,
        /// In memory.
        size: u32,
        /// The size of the memory.
        memory: u32,
    },
    /// A piece is beyond the end of the file.
    #[error("its segment at {address:#x} is not completely in the file; is it truncated?")]
    Truncated {
        /// Physical.
        address: u32,
    },
    /// A piece is larger in the file than in memory.
    #[error("its segment at {address:#x} has {file} bytes in the file and only {size} in memory")]
    Longer {
        /// Physical.
        address: u32,
        /// In the file.
        file: usize,
        /// In memory.
        size: u32,
    },
    /// Its entry point is in no piece.
    #[error("its entry point {0:#x} is in none of its segments")]
    Entry(u32),
}

/// Read a kernel's image.
///
/// # Errors
/// It is not a kernel, or does not fit into `memory` bytes.
pub fn parse(image: &[u8], memory: u32) -> Result<Kernel<'_>, Error> {
    let header = FileHeader32::<BigEndian>::parse(image)?;
    let endian = header.endian()?;
    let (kind, machine) = (header.e_type(endian), header.e_machine(endian));
    if machine != EM_PPC || ![ET_EXEC, ET_DYN].contains(&kind) {
        return Err(Error::Machine { kind, machine });
    }
    let virtual_entry = header.e_entry(endian);
    let mut kernel = Kernel { segments: Vec::new(), entry: 0, end: 0 };
    let mut entry = None;
    for program in header.program_headers(endian, image)? {
        let size = program.p_memsz(endian);
        if program.p_type(endian) != PT_LOAD || size == 0 {
            continue;
        }
        let address = program.p_paddr(endian);
        let end = address.checked_add(size).filter(|&end| end <= memory);
        let end = end.ok_or(Error::Outside { address, size, memory })?;
        let data = program.data(endian, image).map_err(|()| Error::Truncated { address })?;
        if data.len() > size as usize {
            return Err(Error::Longer { address, file: data.len(), size });
        }
        // The kernel is linked at virtual addresses, but starts at a physical one, before it has mapped them.
        let offset = virtual_entry.wrapping_sub(program.p_vaddr(endian));
        if (offset as usize) < data.len() && entry.is_none() {
            entry = Some(address + offset);
        }
        kernel.end = kernel.end.max(end);
        kernel.segments.push(Segment { address, data, size });
    }
    if kernel.segments.is_empty() {
        return Err(Error::Empty);
    }
    kernel.entry = entry.ok_or(Error::Entry(virtual_entry))?;
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMORY: u32 = 16 << 20;
    const HEADER: usize = 52;
    const PROGRAM: usize = 32;

    /// A kernel with its segments (physical address, in the file, in memory), linked at 0xc0000000.
    fn image(segments: &[(u32, &[u8], u32)], entry: u32) -> Vec<u8> {
        let mut image = b"\x7fELF\x01\x02\x01".to_vec();
        image.resize(16, 0);
        let halves =
            |image: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| image.extend(v.to_be_bytes()));
        let words =
            |image: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| image.extend(v.to_be_bytes()));
        halves(&mut image, &[ET_EXEC, EM_PPC]);
        words(&mut image, &[1, entry, HEADER as u32, 0, 0]);
        halves(&mut image, &[HEADER as u16, PROGRAM as u16, segments.len() as u16, 0, 0, 0]);
        let mut offset = HEADER + PROGRAM * segments.len();
        for (address, data, size) in segments {
            let length = data.len() as u32;
            words(
                &mut image,
                &[
                    PT_LOAD,
                    offset as u32,
                    0xc000_0000u32.wrapping_add(*address),
                    *address,
                    length,
                    *size,
                    7,
                    1,
                ],
            );
            offset += data.len();
        }
        segments.iter().for_each(|(_, data, _)| image.extend(*data));
        image
    }

    fn good() -> Vec<u8> {
        image(&[(0x1000, b"code", 4), (0x2000, b"data", 0x800)], 0xc000_1000)
    }

    /// Whether the guarantees of `parse` hold.
    fn is_sound(kernel: &Kernel<'_>, memory: u32) -> bool {
        let inside = |segment: &Segment<'_>| {
            let end = u64::from(segment.address) + u64::from(segment.size);
            end <= u64::from(kernel.end) && segment.data.len() <= segment.size as usize
        };
        let begins = |segment: &Segment<'_>| {
            kernel.entry.checked_sub(segment.address).is_some_and(|at| (at as usize) < segment.data.len())
        };
        kernel.end <= memory && kernel.segments.iter().all(inside) && kernel.segments.iter().any(begins)
    }

    #[test]
    fn a_kernel_is_read() {
        let image = good();
        let kernel = parse(&image, MEMORY).unwrap();
        assert_eq!((kernel.entry, kernel.end, kernel.segments.len()), (0x1000, 0x2800, 2));
        assert_eq!((kernel.segments[1].data, kernel.segments[1].size), (&b"data"[..], 0x800));
        assert!(is_sound(&kernel, MEMORY));
    }

    #[test]
    fn the_soundness_check_can_fail() {
        let segment = |address, size| Segment { address, data: b"code", size };
        let kernel = |segment: Segment<'static>, entry, end| Kernel { segments: vec![segment], entry, end };
        assert!(is_sound(&kernel(segment(0, 8), 0, 8), 8));
        assert!(!is_sound(&kernel(segment(0, 8), 0, 8), 7));
        assert!(!is_sound(&kernel(segment(0, 8), 0, 7), 8));
        assert!(!is_sound(&kernel(segment(0, 3), 0, 8), 8));
        assert!(!is_sound(&kernel(segment(u32::MAX, 8), u32::MAX, 8), 8));
        assert!(!is_sound(&kernel(segment(0, 8), 4, 8), 8));
    }

    fn refused(image: &[u8], memory: u32) -> String {
        parse(image, memory).unwrap_err().to_string()
    }

    #[test]
    fn other_files_are_refused() {
        let changed = |at: usize, value: u8| {
            let mut image = good();
            image[at] = value;
            refused(&image, MEMORY)
        };
        assert!(refused(b"", MEMORY).contains("not a 32-bit big-endian ELF"));
        assert!(refused(b"\x27\x05\x19\x56 a uImage", MEMORY).contains("not a 32-bit big-endian ELF"));
        assert!(changed(4, 2).contains("not a 32-bit big-endian ELF"), "64 bits");
        assert!(changed(5, 1).contains("not a 32-bit big-endian ELF"), "little-endian");
        assert!(changed(17, 1).contains("(type 1, machine 20)"), "an object file");
        assert!(changed(19, 21).contains("(type 2, machine 21)"), "64-bit PowerPC");
        assert!(refused(&image(&[], 0), MEMORY).contains("nothing to load"));
        assert!(refused(&good(), 0x27ff).contains("at 0x2000 does not fit"));
        assert!(refused(&image(&[(u32::MAX, b"x", 2)], 0), MEMORY).contains("does not fit"));
        assert!(refused(&image(&[(0, b"long", 3)], 0), MEMORY).contains("4 bytes in the file and only 3"));
        assert!(refused(&image(&[(0, b"code", 8)], 0xc000_0004), MEMORY).contains("none of its segments"));
    }

    #[test]
    fn no_part_is_a_kernel() {
        let image = good();
        for length in 0..image.len() {
            assert!(parse(&image[..length], MEMORY).is_err(), "{length} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn changed_images_stay_within_bounds(changes in prop::collection::vec((16usize..HEADER + 2 * PROGRAM, any::<u8>()), 1..6), length in 0usize..400) {
            let mut image = good();
            for (at, value) in changes {
                image[at] = value;
            }
            image.resize(image.len().min(length.max(100)), 0);
            if let Ok(kernel) = parse(&image, MEMORY) {
                prop_assert!(is_sound(&kernel, MEMORY));
            }
        }

        #[test]
        fn any_segments_stay_within_bounds(address: u32, size: u32, entry: u32, memory: u32) {
            if let Ok(kernel) = parse(&image(&[(address, b"code", size)], entry), memory) {
                prop_assert!(is_sound(&kernel, memory));
            }
        }

        #[test]
        fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&noise, MEMORY).is_err());
        }
    }
}
