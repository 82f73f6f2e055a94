// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Make a userfaultfd in another process and bring it here.
//!
//! A userfaultfd stands for the memory of the process that calls `userfaultfd(2)`, so the target itself has to.
//! One of its threads is stopped with ptrace and made to run two system calls from its own vDSO: `userfaultfd`, and
//! `close` once the descriptor has been copied with `pidfd_getfd(2)`. Nothing is written to its memory.
//!
//! What keeps the target unharmed:
//! - Nothing is tried where it could end badly: a thread under seccomp (a forbidden call may kill it), one of
//!   another word size, one that somebody traces already.
//! - The thread takes no signal meanwhile: its mask is full, and it is stopped at system calls, not by SIGTRAP.
//! - Registers and mask are put back in a stop from which the kernel restarts the system call that was
//!   interrupted, as after any ptrace stop.
//! - All of it runs in a thread of its own. Whatever goes wrong in it, its end detaches the target. What remains
//!   is the death of this whole process by SIGKILL within these few microseconds.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use procfs::FromRead;
use procfs::process::{MMapPath, Status};

use crate::maps::read_text;
use crate::target::Target;
use crate::uffd::{Faults, open_flags};

/// How long a thread may take to stop. One that waits for a disk or a dead file server does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Make a userfaultfd for the memory of `target`.
///
/// # Errors
/// What was tried and why it was refused; the target is as it was.
pub(crate) fn userfaultfd(target: &Target, faults: Faults) -> Result<OwnedFd, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("making a userfaultfd in another process is written for x86-64 only".into());
    }
    let result = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("libdirty-inject".into())
            .spawn_scoped(scope, || bring_userfaultfd(target, faults))
            .map_err(|error| format!("no thread for it: {error}"))?
            .join()
            .map_err(|_| "the thread for it panicked".to_string())?
    });
    result.map_err(|why| format!("userfaultfd(2) in process {}: {why}", target.pid()))
}

fn bring_userfaultfd(target: &Target, faults: Faults) -> Result<OwnedFd, String> {
    let tid = pick_thread(target)?;
    let instruction = syscall_instruction(target)?;
    let stopped = Stopped::stop(tid, instruction)?;

    let flags = open_flags(faults);
    let remote = stopped.call(libc::SYS_userfaultfd, flags.into()).map_err(|error| error.to_string())?;
    // SAFETY: takes plain numbers; a valid pidfd, and a descriptor of the stopped process.
    let local = unsafe { libc::syscall(libc::SYS_pidfd_getfd, target.pidfd().as_raw_fd(), remote, 0) };
    let copied = if local >= 0 { Ok(local) } else { Err(io::Error::last_os_error()) };
    let closed = stopped.call(libc::SYS_close, remote);
    drop(stopped);
    let local = copied.map_err(|error| format!("pidfd_getfd: {error}"))?;
    let local = i32::try_from(local).map_err(|_| "pidfd_getfd returned no descriptor")?;
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(local) };
    closed.map_err(|error| format!("close: {error}"))?;
    Ok(fd)
}

/// A thread of the target that can run a system call: alive, and free of seccomp.
fn pick_thread(target: &Target) -> Result<Pid, String> {
    let tasks = format!("/proc/{}/task", target.pid());
    let entries = fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))?;
    let mut why = "it has no thread left".to_string();
    for entry in entries.flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(status) = Status::from_file(entry.path().join("status")) else { continue };
        if status.tracerpid != 0 {
            why = format!("process {} traces it already", status.tracerpid);
        } else if status.seccomp != Some(0) {
            why = "it runs under seccomp, which could kill it for the call".into();
        } else if matches!(status.state.chars().next(), Some('Z' | 'X' | 'D')) {
            why = format!("its thread {tid} is in state {}", status.state);
        } else {
            return Ok(Pid::from_raw(tid));
        }
    }
    Err(why)
}

/// The address of a `syscall` instruction in the target's vDSO.
fn syscall_instruction(target: &Target) -> Result<u64, String> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let pid = target.pid();
    let maps = read_text(target.maps()).map_err(|error| format!("reading its mappings: {error}"))?;
    let vdso = maps.iter().find(|map| map.pathname == MMapPath::Vdso).ok_or("it has no vDSO to call from")?;
    let (start, end) = vdso.address;
    let mut code = vec![0; (end - start) as usize];
    let memory = fs::File::open(format!("/proc/{pid}/mem")).map_err(|error| error.to_string())?;
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut code, start)
        .map_err(|error| format!("reading its vDSO: {error}"))?;
    let offset = code
        .windows(SYSCALL.len())
        .position(|bytes| bytes == SYSCALL)
        .ok_or("its vDSO has no syscall instruction")?;
    Ok(start + offset as u64)
}

/// A thread of the target in a ptrace stop; put back and let go when dropped.
struct Stopped {
    tid: Pid,
    registers: libc::user_regs_struct,
    mask: u64,
    instruction: u64,
}

impl Stopped {
    fn stop(tid: Pid, instruction: u64) -> Result<Self, String> {
        ptrace::seize(tid, ptrace::Options::PTRACE_O_TRACESYSGOOD)
            .map_err(|error| format!("ptrace attach to thread {tid}: {error}"))?;
        // From here on an error returns from this thread, whose end detaches the target.
        ptrace::interrupt(tid).map_err(|error| format!("ptrace interrupt of thread {tid}: {error}"))?;
        wait_for_trap(tid)?;
        let registers = ptrace::getregs(tid).map_err(|error| format!("its registers: {error}"))?;
        if registers.cs != 0x33 {
            return Err("it is not a 64-bit process".into());
        }
        let mut mask = 0u64;
        sigmask(tid, libc::PTRACE_GETSIGMASK, &mut mask)
            .map_err(|error| format!("its signal mask: {error}"))?;
        let stopped = Stopped { tid, registers, mask, instruction };
        sigmask(tid, libc::PTRACE_SETSIGMASK, &mut u64::MAX.clone())
            .map_err(|error| format!("its signal mask: {error}"))?;
        Ok(stopped)
    }

    /// Run a system call with one argument in the thread.
    fn call(&self, number: i64, argument: i64) -> Result<i64, Errno> {
        let mut registers = self.registers;
        registers.rip = self.instruction;
        registers.rax = number.cast_unsigned();
        registers.rdi = argument.cast_unsigned();
        // No system call was interrupted, as far as these registers go: nothing to restart.
        registers.orig_rax = u64::MAX;
        ptrace::setregs(self.tid, registers)?;
        self.to_syscall_stop()?; // entry
        self.to_syscall_stop()?; // exit
        let result = ptrace::getregs(self.tid)?.rax.cast_signed();
        if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result) }
    }

    fn to_syscall_stop(&self) -> Result<(), Errno> {
        loop {
            ptrace::syscall(self.tid, None)?;
            match wait(self.tid)? {
                Stop::Syscall => return Ok(()),
                // SIGSTOP cannot be masked: the group stop holds again once we let go.
                Stop::Trap => {}
                Stop::Signal(_) => return Err(Errno::EINTR),
            }
        }
    }

    fn put_back(&self) -> Result<(), String> {
        // A stop within the kernel's signal delivery, which looks at a system call to restart when it goes on.
        ptrace::interrupt(self.tid).map_err(|error| error.to_string())?;
        ptrace::cont(self.tid, None).map_err(|error| error.to_string())?;
        wait_for_trap(self.tid)?;
        ptrace::setregs(self.tid, self.registers).map_err(|error| error.to_string())?;
        sigmask(self.tid, libc::PTRACE_SETSIGMASK, &mut self.mask.clone())
            .map_err(|error| error.to_string())?;
        ptrace::detach(self.tid, None).map_err(|error| error.to_string())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Fails only when the thread was killed meanwhile: then there is nothing to put back.
        let _ = self.put_back();
    }
}

enum Stop {
    /// Entry to or exit from a system call.
    Syscall,
    /// By `PTRACE_INTERRUPT`, or with its group.
    Trap,
    /// About to take a signal.
    Signal(Signal),
}

/// Wait for the stop that `PTRACE_INTERRUPT` asked for; signals that come first are passed on.
fn wait_for_trap(tid: Pid) -> Result<(), String> {
    loop {
        let stop = wait(tid).map_err(|error| format!("waiting for thread {tid} to stop: {error}"))?;
        let signal = match stop {
            Stop::Trap => return Ok(()),
            Stop::Signal(signal) => Some(signal),
            Stop::Syscall => None,
        };
        ptrace::cont(tid, signal).map_err(|error| format!("thread {tid}: {error}"))?;
    }
}

/// Wait for the next stop, with [`PATIENCE`]. `ESRCH` when the thread has ended.
fn wait(tid: Pid) -> Result<Stop, Errno> {
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the write.
        let got = Errno::result(unsafe {
            libc::waitpid(tid.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG)
        });
        match got {
            Ok(0) | Err(Errno::EINTR) if begin.elapsed() > PATIENCE => return Err(Errno::ETIMEDOUT),
            // Most stop at once; the others are given the processor.
            Ok(0) if begin.elapsed() < Duration::from_millis(1) => std::thread::yield_now(),
            Ok(0) => std::thread::sleep(Duration::from_micros(200)),
            Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Err(Errno::ESRCH),
            Err(error) => return Err(error),
            Ok(_) if !libc::WIFSTOPPED(status) => return Err(Errno::ESRCH),
            Ok(_) if status >> 16 == libc::PTRACE_EVENT_STOP => return Ok(Stop::Trap),
            Ok(_) if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => return Ok(Stop::Syscall),
            Ok(_) => return Ok(Stop::Signal(Signal::try_from(libc::WSTOPSIG(status))?)),
        }
    }
}

fn sigmask(tid: Pid, request: libc::c_uint, mask: &mut u64) -> io::Result<()> {
    // SAFETY: both requests take the size of the kernel's signal set, which is eight bytes, and a pointer to one.
    let done = unsafe { libc::ptrace(request, tid.as_raw(), size_of::<u64>(), std::ptr::from_mut(mask)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
