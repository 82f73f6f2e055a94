// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that fill memory and give it back, over and over, as programs with an allocator do: by `malloc`, `free` and
//! `malloc_trim`, by `MADV_DONTNEED`, and by mapping over what was there.
//!
//! Invariant: no page that was filled is zero before it is given back, so that a copy that was made in between and kept
//! differs from the memory.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use libdirty::page_size;

/// Running threads; dropping it stops them.
#[derive(Debug)]
pub struct Churn {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Churn {
    /// Start as many threads of either kind; those that map share `length` bytes at `at`.
    #[must_use]
    pub fn start(threads: usize, at: usize, length: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let share = length / threads.max(1) / page_size() * page_size();
        let allocating = (0..threads).map(|number| {
            let is_over = is_over.clone();
            thread::spawn(move || allocate(&is_over, Random::new(number)))
        });
        let mapping = (0..threads).map(|number| {
            let is_over = is_over.clone();
            thread::spawn(move || map(&is_over, Random::new(100 + number), at + number * share, share))
        });
        let threads = allocating.chain(mapping).collect();
        Churn { is_over, threads }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn new(seed: usize) -> Self {
        Random(0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

/// Write a byte that is not zero into each page.
fn fill(start: usize, length: usize, random: &mut Random) {
    let value = 1 + random.below(255) as u8;
    for address in (start..start + length).step_by(page_size()) {
        // SAFETY: memory of the caller's own; volatile, for nobody here reads it.
        unsafe { (address as *mut u8).write_volatile(value) };
    }
}

/// Blocks that a thread holds at most: more than an allocator keeps when they are freed.
const BLOCKS: usize = 64;

fn allocate(is_over: &AtomicBool, mut random: Random) {
    let mut blocks = [std::ptr::null_mut::<c_void>(); BLOCKS];
    while !is_over.load(Ordering::Relaxed) {
        let block = &mut blocks[random.below(BLOCKS)];
        let length = 1000 + random.below(100_000);
        // SAFETY: a block of this thread or none; then a new one of that length.
        unsafe {
            libc::free(*block);
            *block = libc::malloc(length);
            if !block.is_null() {
                fill(*block as usize, length, &mut random);
            }
            if random.below(BLOCKS) == 0 {
                for block in &mut blocks {
                    libc::free(*block);
                    *block = std::ptr::null_mut();
                }
            }
            if random.below(8) == 0 {
                libc::malloc_trim(0);
            }
        }
    }
    // SAFETY: this thread's, freed once.
    blocks.iter().for_each(|block| unsafe { libc::free(*block) });
}

fn map(is_over: &AtomicBool, mut random: Random, start: usize, length: usize) {
    let pages = length / page_size();
    while pages > 1 && !is_over.load(Ordering::Relaxed) {
        let first = random.below(pages);
        let count = 1 + random.below((pages - first).min(64));
        let (at, length) = (start + first * page_size(), count * page_size());
        match random.below(20) {
            0 => {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let over = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                // SAFETY: memory of this thread's share, in which no object lies.
                unsafe { libc::mmap(at as *mut c_void, length, access, over, -1, 0) };
            }
            1..10 => {
                // SAFETY: as above.
                unsafe { libc::madvise(at as *mut c_void, length, libc::MADV_DONTNEED) };
            }
            _ => fill(at, length, &mut random),
        }
    }
}
