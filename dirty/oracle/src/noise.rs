// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that write memory of their own at the addresses that are watched in another.
//!
//! Invariant: they share no page with the process that started them: each maps its own memory before it writes.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::Duration;

use libdirty::page_size;

use crate::sys::{end, map, pipe};

/// Running processes; dropping it ends them.
#[derive(Debug)]
pub struct Noise(Vec<i32>);

/// Between two rounds: they must not take the processor from who is judged.
const NAP: Duration = Duration::from_micros(200);

impl Noise {
    /// Start them; each has written every page once at return.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn start(processes: usize, at: usize, length: usize) -> io::Result<Self> {
        let mut noise = Noise(Vec::new());
        for _ in 0..processes {
            let (mut reader, writer) = pipe()?;
            // SAFETY: the child makes system calls and stores only, until it is killed.
            match unsafe { libc::fork() } {
                0 => make(at, length, writer.as_raw_fd()),
                pid if pid < 0 => return Err(io::Error::last_os_error()),
                pid => noise.0.push(pid),
            }
            drop(writer);
            // The end of the pipe instead of a byte: it could not map the memory.
            reader.read_exact(&mut [0])?;
        }
        Ok(noise)
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        for pid in self.0.drain(..) {
            let _ = end(pid);
        }
    }
}

fn make(at: usize, length: usize, ready: i32) -> ! {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: system calls, and stores to memory of the arena that is mapped here.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if map(at, length, flags, -1).is_err() {
            libc::_exit(1);
        }
        for round in 0_u64.. {
            for address in (at..at + length).step_by(page_size()) {
                (address as *mut u64).write_volatile(round);
            }
            if round == 0 {
                libc::write(ready, c"".as_ptr().cast(), 1);
            }
            std::thread::sleep(NAP);
        }
        libc::_exit(0)
    }
}
