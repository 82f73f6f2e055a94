// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that write random pages as fast as they can, and hold still when asked to.
//!
//! Invariant: each store changes its word, and while paused no thread is between two stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use libdirty::page_size;

/// Running threads; dropping it stops them.
#[derive(Debug)]
pub struct Writers {
    gate: Arc<Gate>,
    threads: Vec<JoinHandle<u64>>,
}

#[derive(Debug)]
struct Gate {
    open: AtomicBool,
    ended: AtomicBool,
    waiting: AtomicUsize,
}

impl Writers {
    /// Start writing to `length` bytes at `at`.
    #[must_use]
    pub fn start(threads: usize, at: usize, length: usize) -> Self {
        let gate = Arc::new(Gate {
            open: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        });
        let threads = (0..threads)
            .map(|number| {
                let gate = gate.clone();
                thread::spawn(move || write(&gate, number, at, length / page_size()))
            })
            .collect();
        Writers { gate, threads }
    }

    /// Return when every thread holds still.
    pub fn pause(&self) {
        self.gate.open.store(false, Ordering::SeqCst);
        while self.gate.waiting.load(Ordering::SeqCst) < self.threads.len() {
            thread::yield_now();
        }
    }

    /// Let them go on; return when every thread has.
    pub fn resume(&self) {
        self.gate.open.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        while self.gate.waiting.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
    }

    /// End them; returns how many stores they have made.
    #[must_use]
    pub fn stop(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        self.gate.ended.store(true, Ordering::SeqCst);
        self.gate.open.store(true, Ordering::SeqCst);
        let threads = self.threads.drain(..);
        threads
            .map(|thread| {
                thread.thread().unpark();
                thread.join().unwrap_or(0)
            })
            .sum()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns how many stores it has made.
fn write(gate: &Gate, number: usize, at: usize, pages: usize) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1);
    let mut count = 0_u64;
    while !gate.ended.load(Ordering::Relaxed) {
        if !gate.open.load(Ordering::Relaxed) {
            gate.waiting.fetch_add(1, Ordering::SeqCst);
            while !gate.open.load(Ordering::SeqCst) {
                thread::park();
            }
            gate.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        count += 1;
        // Each thread has its own words of a page.
        let word = at + (random as usize % pages) * page_size() + number * 64;
        // SAFETY: memory of the arena (see [`crate::perform`]), mapped while the threads run.
        unsafe { (word as *mut u64).write_volatile(count) };
    }
    count
}
