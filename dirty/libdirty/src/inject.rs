// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Make a userfaultfd in another process and bring it here.
//!
//! A userfaultfd stands for the memory of the process that calls `userfaultfd(2)`, so the target itself has to.
//! One of its threads is stopped with ptrace, made to call that and then `close(2)`, and put back to where it was.
//! Between the two calls it is stopped once more, and the descriptor is copied with `pidfd_getfd(2)`.
//!
//! What is tied to a processor is in `processor`, a file for each: registers, where a system call instruction is to be
//! found, what the kernel does with a call that was interrupted, what a call destroys.
//!
//! Invariant: *this process may be killed at any instant*, and the thread goes on as if nothing had happened. Either
//! the thread is sent over code that by itself leads back to where it was (x86-64: a bridge), or a guardian, which
//! does not die with this process, does the work (arm64).
//!
//! What else keeps the target unharmed:
//! - Threads for which this could fail badly are refused: with system calls that go to a handler (syscall user
//!   dispatch), of another word size, or traced already.
//! - A thread under seccomp is taken only if no other is there, with its filters suspended (`seccomp`). They come back
//!   when the tracer dies, and might kill the thread for what it is made to call. So a guardian attaches to such a
//!   thread, on every processor. A call of the thread's own is never made while they are suspended.
//! - The thread takes no signal meanwhile: its mask is full, and it is stopped at system calls, not by SIGTRAP.
//! - A system call that was interrupted goes on as after any ptrace stop.
//! - A stop is found by asking ptrace, not by `waitpid`: a program that reaps any child could take that event away.
//! - All of it runs in a thread of its own, and the end of that thread detaches the target, whatever went wrong.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::guardian;
use crate::own;
use crate::seccomp;
use crate::status;
use crate::target::Target;

#[cfg_attr(target_arch = "x86_64", path = "inject/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "inject/aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "inject/other.rs")]
mod processor;

use processor::{Detour, NEEDS_GUARDIAN, Place};

/// How long a thread may take to stop. One that waits for a disk or a dead file server does not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Make a userfaultfd for the memory of `target`, with these flags of `userfaultfd(2)`.
///
/// # Errors
/// What was tried and why it was refused; the target is as it was.
pub(crate) fn userfaultfd(target: &Target, flags: i32) -> Result<OwnedFd, String> {
    processor::is_supported()?;
    // Two at a time would build on the same ground.
    let _attaching = own::attaching();
    let result = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("libdirty-inject".into())
            .spawn_scoped(scope, || match wait_for_thread(target)? {
                (tid, Filters::None) if !NEEDS_GUARDIAN => {
                    bring_userfaultfd(target, tid, Filters::None, flags)
                }
                (tid, filters) => guardian::run(|| bring_userfaultfd(target, tid, filters, flags))?,
            })
            .map_err(|error| format!("no thread for it: {error}"))?
            .join()
            .map_err(|_| "the thread for it panicked".to_string())?
    });
    result.map_err(|why| format!("userfaultfd(2) in process {}: {why}", target.pid()))
}

/// What is to be done about the seccomp filters of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filters {
    /// It has none.
    None,
    /// They are suspended, and a guardian attaches.
    Suspend,
}

fn bring_userfaultfd(target: &Target, tid: Pid, filters: Filters, flags: i32) -> Result<OwnedFd, String> {
    let stopped = Stopped::stop(target, tid, filters)?;
    let crossing = stopped.enter(target, libc::SYS_userfaultfd, flags.into())?;
    let remote = crossing.call().map_err(|error| error.to_string())?;
    let copied = copy(target, tid, remote);
    let closed = crossing.close(remote);
    drop(crossing);
    let local = copied?;
    let local = i32::try_from(local).map_err(|_| "pidfd_getfd returned no descriptor")?;
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(local) };
    closed.map_err(|error| format!("close: {error}"))?;
    Ok(fd)
}

/// Copy a descriptor of the target, of which `tid` lives, to this process.
fn copy(target: &Target, tid: Pid, remote: i64) -> Result<i64, String> {
    const PIDFD_THREAD: i32 = libc::O_EXCL; // Linux 6.9
    let mut thread = None;
    if target.folder() != format!("/proc/{}", target.pid()) {
        // SAFETY: takes plain numbers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid.as_raw(), PIDFD_THREAD) };
        if fd < 0 {
            return Err(format!(
                "its main thread has ended, and a descriptor of another cannot be copied before Linux 6.9: {}",
                io::Error::last_os_error()
            ));
        }
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        thread = Some(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    }
    let whose = thread.as_ref().unwrap_or(target.pidfd());
    // SAFETY: takes plain numbers; a valid pidfd, and a descriptor of the stopped process.
    let local = unsafe { libc::syscall(libc::SYS_pidfd_getfd, whose.as_raw_fd(), remote, 0) };
    if local < 0 {
        return Err(format!("pidfd_getfd: {}", io::Error::last_os_error()));
    }
    Ok(local)
}

/// Why no thread of the target can run a system call.
struct Unfit {
    why: String,
    /// Whether one sleeps where no signal wakes it: as a rule not for long, waiting for a disk or for a `vfork` child. But
    /// it may also be in a cgroup that somebody has frozen.
    is_asleep: bool,
}

/// A thread of the target that can run a system call; waited for, as long as the target is, where one is just not to be
/// woken.
fn wait_for_thread(target: &Target) -> Result<(Pid, Filters), String> {
    loop {
        match pick_thread(target) {
            Ok(found) => return Ok(found),
            Err(Unfit { is_asleep: true, .. }) if target.is_waited_for() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Unfit { why, is_asleep: true }) => {
                return Err(format!("{why}, for {:?} now", target.patience()));
            }
            Err(Unfit { why, is_asleep: false }) => return Err(why),
        }
    }
}

/// A thread of the target that can run a system call: alive, and if there is one, free of seccomp.
fn pick_thread(target: &Target) -> Result<(Pid, Filters), Unfit> {
    let mut unfit = Unfit { why: "it has no thread left".into(), is_asleep: false };
    let tasks = format!("/proc/{}/task", target.pid());
    let entries =
        fs::read_dir(&tasks).map_err(|error| Unfit { why: format!("{tasks}: {error}"), is_asleep: false })?;
    let mut filtered = None;
    for entry in entries.flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(status) = status::read(entry.path().join("status")) else { continue };
        let state = status.state.chars().next();
        if status.tracerpid != 0 {
            unfit.why = format!("process {} traces it already", status.tracerpid);
        } else if matches!(state, Some('Z' | 'X' | 'D')) {
            unfit.why = format!("its thread {tid} is in state {}", status.state);
            unfit.is_asleep |= state == Some('D');
        } else if status.seccomp.unwrap_or(0) != 0 {
            filtered = Some((Pid::from_raw(tid), Filters::Suspend));
        } else {
            return Ok((Pid::from_raw(tid), Filters::None));
        }
    }
    filtered.ok_or(unfit)
}

/// A thread of the target in a ptrace stop; let go as it is when dropped.
struct Stopped {
    tid: Pid,
    place: Place,
    mask: u64,
}

impl Stopped {
    fn stop(target: &Target, tid: Pid, filters: Filters) -> Result<Self, String> {
        ptrace::seize(tid, ptrace::Options::PTRACE_O_TRACESYSGOOD)
            .map_err(|error| format!("ptrace attach to thread {tid}: {error}"))?;
        // From here on an error returns from this thread, whose end detaches the target.
        ptrace::interrupt(tid).map_err(|error| format!("ptrace interrupt of thread {tid}: {error}"))?;
        wait_for_trap(tid)?;
        let begin = Instant::now();
        let place = loop {
            if !is_in_restartable_sequence(target, tid)
                && let Some(place) = Place::find(target, tid)?
            {
                break place;
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("thread {tid} does not get to where it may be sent elsewhere"));
            }
            ptrace::cont(tid, None).map_err(|error| format!("thread {tid}: {error}"))?;
            std::thread::sleep(Duration::from_micros(50));
            ptrace::interrupt(tid).map_err(|error| format!("ptrace interrupt of thread {tid}: {error}"))?;
            wait_for_trap(tid)?;
        };
        // Asked again, for it may have changed until it stopped.
        match (seccomp::is_filtered(target, tid)?, filters) {
            (true, Filters::None) => {
                return Err(format!("thread {tid} has just gone under seccomp: try again"));
            }
            (true, Filters::Suspend) => seccomp::suspend(tid, libc::PTRACE_O_TRACESYSGOOD)?,
            (false, _) => {}
        }
        if dispatches_syscalls(tid) {
            return Err("its system calls go to a handler of its own (syscall user dispatch)".into());
        }
        let mut mask = 0u64;
        sigmask(tid, libc::PTRACE_GETSIGMASK, &mut mask)
            .map_err(|error| format!("its signal mask: {error}"))?;
        Ok(Stopped { tid, place, mask })
    }

    /// Send it to where it makes this system call of one argument.
    fn enter(self, target: &Target, number: i64, argument: i64) -> Result<Crossing, String> {
        let detour = Detour::build(target, self.tid, &self.place, self.mask)?;
        let crossing = Crossing { stopped: self, detour };
        let Crossing { stopped: Stopped { tid, place, .. }, detour } = &crossing;
        detour.enter(*tid, place, number, argument).map_err(|error| format!("its registers: {error}"))?;
        // Not before: until then a thread that is let go keeps the mask that it has.
        set_mask(*tid, u64::MAX)?;
        Ok(crossing)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Fails where it was let go already, or has ended. One on a bridge goes on there.
        let _ = ptrace::detach(self.tid, None);
    }
}

/// A thread that makes calls for us; put back and let go when dropped.
struct Crossing {
    stopped: Stopped,
    detour: Detour,
}

impl Crossing {
    /// Let it make the system call before which it stands.
    fn call(&self) -> Result<i64, Errno> {
        let tid = self.stopped.tid;
        to_syscall_stop(tid)?; // entry
        to_syscall_stop(tid)?; // exit
        let result = processor::result(tid)?;
        if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result) }
    }

    /// Let it close its descriptor.
    fn close(&self, fd: i64) -> Result<i64, Errno> {
        self.detour.close(self.stopped.tid, &self.stopped.place, fd)?;
        self.call()
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        let Stopped { tid, place, mask } = &self.stopped;
        // Fails only when the thread was killed meanwhile: then there is nothing to put back.
        let _ = self.detour.end(*tid, place, *mask);
    }
}

/// Let the thread, whose signals are all masked, go on to its next entry to or exit from a system call.
fn to_syscall_stop(tid: Pid) -> Result<(), Errno> {
    let mut signal = 0;
    loop {
        resume(tid, libc::PTRACE_SYSCALL, signal)?;
        signal = match wait(tid)? {
            Stop::Syscall => return Ok(()),
            // A group stop holds again once we let go.
            Stop::Trap => 0,
            // All signals are masked: this is SIGSTOP, which only stops the group.
            Stop::Signal(signal) => signal,
        }
    }
}

enum Stop {
    /// Entry to or exit from a system call.
    Syscall,
    /// By `PTRACE_INTERRUPT`, or with its group.
    Trap,
    /// About to take this signal.
    Signal(i32),
}

/// Wait for the stop that `PTRACE_INTERRUPT` asked for; signals that come first are passed on.
fn wait_for_trap(tid: Pid) -> Result<(), String> {
    loop {
        let stop = wait(tid).map_err(|error| format!("waiting for thread {tid} to stop: {error}"))?;
        let signal = match stop {
            Stop::Trap => return Ok(()),
            Stop::Signal(signal) => signal,
            Stop::Syscall => 0,
        };
        resume(tid, libc::PTRACE_CONT, signal).map_err(|error| format!("thread {tid}: {error}"))?;
    }
}

/// Let the thread go on with the signal that it was about to take, or 0. (nix knows no real-time signals.)
fn resume(tid: Pid, request: libc::c_uint, signal: i32) -> Result<(), Errno> {
    // SAFETY: both requests that come here take a signal number and no pointer.
    let resumed = unsafe { libc::ptrace(request, tid.as_raw(), 0, libc::c_long::from(signal)) };
    Errno::result(resumed).map(drop)
}

/// Wait for the next stop, with [`PATIENCE`]. `ESRCH` when the thread has ended.
fn wait(tid: Pid) -> Result<Stop, Errno> {
    let begin = Instant::now();
    loop {
        // Only of a stopped thread is this known.
        // SAFETY: the struct is plain numbers and pointers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: fills `info`.
        let known = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid.as_raw(), 0, &raw mut info) } == 0;
        if known {
            return Ok(match (info.si_signo, info.si_code) {
                (_, code) if code >> 8 == libc::PTRACE_EVENT_STOP => Stop::Trap,
                (libc::SIGTRAP, code) if code == libc::SIGTRAP | 0x80 => Stop::Syscall,
                (signal, _) => Stop::Signal(signal),
            });
        }
        // The news of a stop is taken, so that this program's own waits do not get it. That of its end is left: this
        // program may be the parent, which is to get it.
        news(tid, libc::WSTOPPED);
        let has_ended = matches!(
            news(tid, libc::WEXITED | libc::WNOWAIT),
            Some(libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
        );
        if has_ended || !Path::new(&format!("/proc/{tid}")).exists() {
            return Err(Errno::ESRCH);
        }
        let waited = begin.elapsed();
        if waited > PATIENCE {
            return Err(Errno::ETIMEDOUT);
        }
        // Most stop at once; the others are given the processor.
        if waited < Duration::from_millis(1) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// What has happened to the thread (`CLD_…`), of these kinds; or a stop, which a tracer is always told of.
fn news(tid: Pid, kinds: libc::c_int) -> Option<i32> {
    // SAFETY: the struct is plain numbers and pointers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = kinds | libc::WNOHANG | libc::__WALL;
    // SAFETY: the kernel fills the struct, or leaves it.
    let asked = unsafe { libc::waitid(libc::P_PID, tid.as_raw().cast_unsigned(), &raw mut info, flags) };
    (asked == 0 && info.si_signo == libc::SIGCHLD).then_some(info.si_code)
}

/// Whether the thread may be inside a restartable sequence (rseq). The kernel aborts one that is interrupted, but not
/// when it sees the thread elsewhere, in our call, on its way back.
fn is_in_restartable_sequence(target: &Target, tid: Pid) -> bool {
    const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f; // Linux 5.13
    const RSEQ_CS: u64 = 8; // the offset of the pointer to the sequence
    let mut config = [0u64; 3]; // address, size and signature, flags
    let size = size_of_val(&config);
    // SAFETY: fills the struct, whose size it is given.
    let result =
        unsafe { libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid.as_raw(), size, config.as_mut_ptr()) };
    if result < 0 || config[0] == 0 {
        return false;
    }
    let mut sequence = [0; 8];
    let read = fs::File::open(format!("{}/mem", target.folder())).and_then(|memory| {
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut sequence, config[0] + RSEQ_CS)
    });
    read.is_ok() && u64::from_ne_bytes(sequence) != 0
}

/// Whether system calls of the thread may be turned into signals (Linux 5.11; readable since 6.4).
fn dispatches_syscalls(tid: Pid) -> bool {
    const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
    let mut config = [0u64; 4]; // mode, selector, offset, length
    let size = size_of_val(&config);
    // SAFETY: fills the four numbers, whose size it is given.
    let result = unsafe {
        libc::ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid.as_raw(), size, config.as_mut_ptr())
    };
    result == 0 && config[0] != 0
}

fn sigmask(tid: Pid, request: libc::c_uint, mask: &mut u64) -> io::Result<()> {
    // SAFETY: both requests take the size of the kernel's signal set, which is eight bytes, and a pointer to one.
    let done = unsafe { libc::ptrace(request, tid.as_raw(), size_of::<u64>(), std::ptr::from_mut(mask)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_mask(tid: Pid, mut mask: u64) -> Result<(), String> {
    sigmask(tid, libc::PTRACE_SETSIGMASK, &mut mask).map_err(|error| format!("its signal mask: {error}"))
}
