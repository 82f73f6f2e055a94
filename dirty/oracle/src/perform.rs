// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries operations out, in the process that runs this.
//!
//! Invariant: memory that operations touch was mapped by operations, at addresses far from where the kernel and
//! the allocator put anything by themselves ([`ARENA`]); no Rust object ever lies there.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libdirty::page_size;

use crate::churn::Churn;
#[cfg(target_arch = "x86_64")]
use crate::guest::Guest;
use crate::kernel_writes;
use crate::noise::Noise;
use crate::op::{Backing, Op};
use crate::pinned::Pinned;
use crate::sys::{check, end, map, pipe, temporary_file, wait};
use crate::writers::Writers;

/// Where the memory of all scenarios lies: where neither the kernel nor a sanitizer puts anything.
pub const ARENA: usize = 0x2000_0000_0000;

/// The state that operations leave behind.
#[derive(Debug, Default)]
pub struct Performer {
    shared: Vec<(usize, OwnedFd)>,
    writers: Option<Writers>,
    fork: Option<i32>,
    pinned: Option<Box<Pinned>>,
    noise: Option<Noise>,
    churn: Option<Churn>,
    #[cfg(target_arch = "x86_64")]
    guest: Option<Guest>,
}

impl Performer {
    /// Do it.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn perform(&mut self, op: Op) -> io::Result<i64> {
        match op {
            Op::Map { at, length, backing, replace } => self.map(at, length, backing, replace),
            Op::Alias { of, at, length } => {
                let (_, shared) = self
                    .shared
                    .iter()
                    .rfind(|(start, _)| *start == of)
                    .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
                map(at, length, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE, shared.as_raw_fd())
            }
            // SAFETY: (here and below) operations name memory of the arena only, where no object lies.
            Op::Unmap { at, length } => check(unsafe { libc::munmap(at as *mut _, length) }.into()),
            Op::Remap { at, length, new_length, to } => {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: as above.
                let moved = unsafe {
                    match to {
                        Some(to) => libc::mremap(at as *mut _, length, new_length, flags, to),
                        None => libc::mremap(at as *mut _, length, new_length, 0),
                    }
                };
                check(moved as i64)
            }
            Op::Protect { at, length, protection } => {
                // SAFETY: as above.
                check(unsafe { libc::mprotect(at as *mut _, length, protection) }.into())
            }
            Op::Advise { at, length, advice } => {
                // SAFETY: as above.
                check(unsafe { libc::madvise(at as *mut _, length, advice) }.into())
            }
            Op::Fill { at, length, value } => {
                // SAFETY: as above; opaque to the compiler.
                unsafe { std::ptr::write_bytes(std::hint::black_box(at as *mut u8), value, length) };
                Ok(0)
            }
            Op::Touch { at, length, step, value } => {
                for address in (at..at + length).step_by(step) {
                    // SAFETY: as above.
                    unsafe { (address as *mut u8).write_volatile(value) };
                }
                Ok(0)
            }
            Op::Differing { at, length, step, value } => {
                // SAFETY: as above.
                let is_other = |address: &usize| unsafe { (*address as *const u8).read_volatile() } != value;
                Ok((at..at + length).step_by(step).filter(is_other).count() as i64)
            }
            Op::Straddle { at, value } => {
                store_unaligned(at, value);
                Ok(0)
            }
            Op::Load { at, length } => {
                for address in (at..at + length).step_by(page_size()) {
                    // SAFETY: as above.
                    unsafe { (address as *const u8).read_volatile() };
                }
                Ok(0)
            }
            Op::Kernel { way, at, length, value } => kernel_writes::perform(way, at, length, value),
            Op::Into { pid, way, at, length, value } => {
                kernel_writes::into_process(pid, way, at, &vec![value; length])
            }
            Op::Guest { at, length, value } => self.write_by_guest(at, length, value),
            Op::Pin { at, length } => {
                self.pinned = Some(Box::new(Pinned::new(at, length)?));
                Ok(0)
            }
            Op::WritePinned { value } => {
                let pinned = self.pinned.as_mut();
                pinned.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?.write(value)
            }
            Op::Unpin => {
                self.pinned = None;
                Ok(0)
            }
            Op::Sync { at, length } => {
                // SAFETY: as above.
                check(unsafe { libc::msync(at as *mut _, length, libc::MS_SYNC) }.into())
            }
            Op::StartNoise { processes, at, length } => {
                self.noise = Some(Noise::start(processes, at, length)?);
                Ok(0)
            }
            Op::StopNoise => {
                self.noise = None;
                Ok(0)
            }
            Op::Signal { at, length } => signal_on(at, length),
            Op::StartWriters { threads, at, length } => {
                self.writers = Some(Writers::start(threads, at, length));
                Ok(0)
            }
            Op::PauseWriters => {
                self.writers.as_ref().inspect(|writers| writers.pause());
                Ok(0)
            }
            Op::ResumeWriters => {
                self.writers.as_ref().inspect(|writers| writers.resume());
                Ok(0)
            }
            Op::StopWriters => Ok(self.writers.take().map_or(0, |writers| writers.stop().cast_signed())),
            Op::StartChurn { threads, at, length } => {
                self.churn = Some(Churn::start(threads, at, length));
                Ok(0)
            }
            Op::StopChurn => {
                self.churn = None;
                Ok(0)
            }
            Op::Fork { at, length, value } => self.fork(at, length, value),
            Op::EndFork => {
                if let Some(pid) = self.fork.take() {
                    end(pid)?;
                }
                Ok(0)
            }
            Op::Exec => Err(exec()),
            Op::Ping => Ok(0),
        }
    }

    fn map(&mut self, at: usize, length: usize, backing: Backing, replace: bool) -> io::Result<i64> {
        let place = if replace { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
        match backing {
            Backing::Anonymous => {
                map(at, length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | place, -1)
            }
            Backing::Shared => {
                // SAFETY: a constant name; returns a new descriptor or -1.
                let fd = unsafe { libc::memfd_create(c"oracle".as_ptr(), libc::MFD_CLOEXEC) };
                check(fd.into())?;
                // SAFETY: the kernel has just returned it.
                let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
                file.set_len(length as u64)?;
                let mapped = map(at, length, libc::MAP_SHARED | place, file.as_raw_fd())?;
                self.shared.push((at, file.into()));
                Ok(mapped)
            }
            Backing::PrivateFile => {
                let file = temporary_file(length)?;
                map(at, length, libc::MAP_PRIVATE | place, file.as_raw_fd())
            }
            Backing::SharedFile => {
                let file = temporary_file(length)?;
                map(at, length, libc::MAP_SHARED | place, file.as_raw_fd())
            }
            Backing::Huge => {
                map(at, length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | place, -1)
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn write_by_guest(&mut self, at: usize, length: usize, value: u8) -> io::Result<i64> {
        let guest = match self.guest.take() {
            Some(guest) => guest,
            None => Guest::new()?,
        };
        self.guest.insert(guest).write(at, length, value)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn write_by_guest(&mut self, _at: usize, _length: usize, _value: u8) -> io::Result<i64> {
        Err(io::Error::from_raw_os_error(libc::ENODEV))
    }

    fn fork(&mut self, at: usize, length: usize, value: u8) -> io::Result<i64> {
        let (mut reader, writer) = pipe()?;
        // SAFETY: the child makes system calls and stores only, until it is killed.
        let pid = unsafe { libc::fork() };
        check(pid.into())?;
        if pid == 0 {
            // SAFETY: as above; the arena is mapped in the child too.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for address in (at..at + length).step_by(page_size()) {
                    (address as *mut u8).add(8).write_volatile(value);
                }
                libc::write(writer.as_raw_fd(), c"".as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        drop(writer);
        self.fork = Some(pid);
        // The end of the pipe instead of a byte: the child died.
        if reader.read(&mut [0])? == 0 {
            self.fork = None;
            let status = wait(pid)?;
            return Err(io::Error::other(format!("the forked child died (wait status {status:#x})")));
        }
        Ok(pid.into())
    }
}

impl Drop for Performer {
    fn drop(&mut self) {
        if let Some(pid) = self.fork.take() {
            let _ = end(pid);
        }
    }
}

/// One store, of which no compiler makes two.
#[cfg(target_arch = "x86_64")]
fn store_unaligned(at: usize, value: u64) {
    // SAFETY: see the module; x86 stores anywhere.
    unsafe {
        std::arch::asm!("mov [{at}], {value}", at = in(reg) at, value = in(reg) value, options(nostack))
    };
}

/// One store, of which no compiler makes two.
#[cfg(target_arch = "aarch64")]
fn store_unaligned(at: usize, value: u64) {
    // SAFETY: see the module; plain stores need no alignment in normal memory.
    unsafe {
        std::arch::asm!("str {value}, [{at}]", at = in(reg) at, value = in(reg) value, options(nostack))
    };
}

static SIGNALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: i32) {
    SIGNALLED.store(true, Ordering::Relaxed);
}

/// Take SIGUSR1 on an alternate stack in the arena.
fn signal_on(at: usize, length: usize) -> io::Result<i64> {
    let stack = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: length };
    SIGNALLED.store(false, Ordering::Relaxed);
    // SAFETY: the stack is memory of the arena, used during `raise` alone; the old one is put back.
    unsafe {
        let mut old: libc::stack_t = std::mem::zeroed();
        check(libc::sigaltstack(&raw const stack, &raw mut old).into())?;
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        check(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()).into())?;
        check(libc::raise(libc::SIGUSR1).into())?;
        check(libc::sigaltstack(&raw const old, std::ptr::null_mut()).into())?;
    }
    Ok(SIGNALLED.load(Ordering::Relaxed).into())
}

/// Become the same program, waiting for operations; returns only if that fails.
fn exec() -> io::Error {
    use std::os::unix::process::CommandExt;
    match std::env::current_exe() {
        Ok(program) => std::process::Command::new(program).arg("workload").exec(),
        Err(error) => error,
    }
}
