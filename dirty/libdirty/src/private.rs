// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zeroed memory of libdirty's own, which no tracker of this process watches (`own`), and which is no part of the
//! program's heap.
//!
//! A large piece is a mapping. Small ones, of which each small mapping under watch has one or two, share chunks: with
//! a mapping each, they would take the process to its limit of mappings (`vm.max_map_count`).
//!
//! Chunks are never unmapped; pieces that were given back are used again. A forked child leaves those of its parent
//! alone: what it has of them is memory like any other, and is not given back.

use std::io;
use std::ptr::NonNull;

use crate::extent::{PageRange, page_size};
use crate::own::{self, Kept};

/// Words of each size of small pieces.
const SIZES: [usize; 2] = [2, 8];
const CHUNK: usize = 64 << 10;

/// Small pieces that nobody uses, and how many chunks were made for them. One for a process.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: [Vec<NonNull<u64>>; SIZES.len()],
    chunks: Vec<Mapped>,
}

// SAFETY: free pieces are nobody's; the pointers lead nowhere else.
unsafe impl Send for Pool {}

/// Words that this value owns alone, zero at first.
#[derive(Debug)]
pub(crate) struct Words {
    start: NonNull<u64>,
    from: From,
}

// SAFETY: it owns the memory alone; nothing depends on a thread.
unsafe impl Send for Words {}
// SAFETY: it gives out no reference to the memory.
unsafe impl Sync for Words {}

#[derive(Debug)]
enum From {
    Mapping(#[allow(dead_code)] Box<Mapped>),
    /// The size's number, and the process that took it.
    Pool(usize, u32),
}

impl Words {
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let Some(size) = SIZES.iter().position(|size| count <= *size) else {
            let mapped = Mapped::new(count * size_of::<u64>())?;
            return Ok(Words { start: mapped.start, from: From::Mapping(Box::new(mapped)) });
        };
        let mut pool = own::pool();
        if pool.free[size].is_empty() {
            pool.grow(size)?;
        }
        let start = pool.free[size].pop().ok_or(io::ErrorKind::OutOfMemory)?;
        drop(pool);
        // SAFETY: a free piece of this size, mapped for good.
        unsafe { start.write_bytes(0, SIZES[size]) };
        Ok(Words { start, from: From::Pool(size, std::process::id()) })
    }

    /// The first.
    pub(crate) fn as_ptr(&self) -> *mut u64 {
        self.start.as_ptr()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if let From::Pool(size, process) = self.from
            && process == std::process::id()
        {
            own::pool().free[size].push(self.start);
        }
    }
}

impl Pool {
    /// Make a chunk of pieces of one size.
    fn grow(&mut self, size: usize) -> io::Result<()> {
        let chunk = Mapped::new(CHUNK)?;
        // SAFETY: offsets within the chunk.
        let pieces = (0..CHUNK / size_of::<u64>() / SIZES[size])
            .map(|at| unsafe { chunk.start.add(at * SIZES[size]) });
        self.free[size].extend(pieces);
        self.chunks.push(chunk);
        Ok(())
    }
}

/// A mapping, entered as libdirty's own.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u64>,
    length: usize,
    /// Always there but while it is dropped.
    kept: Option<Kept>,
}

// SAFETY: it owns the memory alone; nothing depends on a thread.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Its own kind of memory: joined with a mapping of the program, it would make all of that soft-dirty.
        // SAFETY: the mapping just made, which nobody uses yet.
        let usable = unsafe {
            libc::madvise(memory, length, libc::MADV_DONTDUMP);
            libc::mprotect(memory, length, libc::PROT_READ | libc::PROT_WRITE)
        };
        if usable != 0 {
            let error = io::Error::last_os_error();
            // SAFETY: as above.
            unsafe { libc::munmap(memory, length) };
            return Err(error);
        }
        let start = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mmap returned page 0"))?;
        let range =
            PageRange::trusted(memory as usize, (memory as usize + length).next_multiple_of(page_size()));
        Ok(Mapped { start, length, kept: Some(Kept::new(range)) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Before the memory goes: the program may be given these addresses at once.
        self.kept = None;
        // SAFETY: the mapping made by `new`, of the same length, of which nobody has a reference.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_apart_and_used_again() {
        for count in [1, 2, 3, 8, 9, 5000] {
            let pieces: Vec<_> = (0..100).map(|_| Words::new(count).unwrap()).collect();
            for piece in &pieces {
                // SAFETY: so many words, which nobody else uses.
                let words = unsafe { std::slice::from_raw_parts_mut(piece.as_ptr(), count) };
                assert!(words.iter().all(|word| *word == 0));
                words.fill(u64::MAX);
            }
        }
        let first = Words::new(2).unwrap();
        let start = first.as_ptr();
        drop(first);
        assert!((0..20_000).any(|_| Words::new(2).unwrap().as_ptr() == start));
    }
}
