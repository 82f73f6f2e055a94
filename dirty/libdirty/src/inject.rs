// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Make a userfaultfd in another process and bring it here.
//!
//! A userfaultfd stands for the memory of the process that calls `userfaultfd(2)`, so the target itself has to.
//! One of its threads is stopped with ptrace and sent over a *bridge*: a few instructions that make the call, close
//! the descriptor, put back the signal mask and every register that they used, and jump to where the thread was.
//! Between the call and the close it is stopped once more, and the descriptor is copied with `pidfd_getfd(2)`.
//!
//! The bridge is written to unused bytes behind the end of the vDSO, on its last page, which thereby becomes a private
//! copy of the process, and stays one. No memory of the program is written, and no stack.
//!
//! Invariant: *the tracer may die at any instant*. Whatever it has done so far, the thread, let go by the kernel, runs
//! on as if nothing had happened:
//! - Before the registers are changed it was only stopped. The bridge is complete before any register points to it.
//! - From then on it is on the bridge, which ends where it was, with the mask that it had. The mask is changed when the
//!   registers are on the bridge already, and put back while they still are.
//! - A system call that was interrupted is made again by the bridge as the kernel would have.
//! - A bridge on which a thread may still be is never changed, nor used again while that thread lives: signals that
//!   waited are taken on it, and their handlers return to it.
//!
//! What else keeps the target unharmed:
//! - Threads for which this could fail badly are refused: with system calls that go to a handler (syscall user
//!   dispatch), of another word size, or traced already.
//! - A thread under seccomp is taken only if no other is there, with its filters suspended (`seccomp`). They come back
//!   when the tracer dies, and might kill the thread for what the bridge calls. So a guardian attaches to such a thread,
//!   which does not die with this process.
//! - The thread takes no signal meanwhile: its mask is full, and it is stopped at system calls, not by SIGTRAP.
//! - Registers are put back in a stop from which the kernel restarts the system call that was
//!   interrupted, as after any ptrace stop.
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
use procfs::FromRead;
use procfs::process::{MMapPath, Status};

use crate::guardian;
use crate::own;
use crate::seccomp;
use crate::target::Target;

/// How long a thread may take to stop. One that waits for a disk or a dead file server does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Make a userfaultfd for the memory of `target`, with these flags of `userfaultfd(2)`.
///
/// # Errors
/// What was tried and why it was refused; the target is as it was.
pub(crate) fn userfaultfd(target: &Target, flags: i32) -> Result<OwnedFd, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("making a userfaultfd in another process is written for x86-64 only".into());
    }
    // Two at a time would build on the same ground.
    let _attaching = own::attaching();
    let result = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("libdirty-inject".into())
            .spawn_scoped(scope, || match pick_thread(target)? {
                (tid, Filters::None) => bring_userfaultfd(target, tid, Filters::None, flags),
                (tid, suspended) => guardian::run(|| bring_userfaultfd(target, tid, suspended, flags))?,
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
    let closed = crossing.call(); // what the bridge calls next
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

/// A thread of the target that can run a system call: alive, and if there is one, free of seccomp.
fn pick_thread(target: &Target) -> Result<(Pid, Filters), String> {
    let tasks = format!("/proc/{}/task", target.pid());
    let entries = fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))?;
    let mut why = "it has no thread left".to_string();
    let mut filtered = None;
    for entry in entries.flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(status) = Status::from_file(entry.path().join("status")) else { continue };
        if status.tracerpid != 0 {
            why = format!("process {} traces it already", status.tracerpid);
        } else if matches!(status.state.chars().next(), Some('Z' | 'X' | 'D')) {
            why = format!("its thread {tid} is in state {}", status.state);
        } else if status.seccomp.unwrap_or(0) != 0 {
            filtered = Some((Pid::from_raw(tid), Filters::Suspend));
        } else {
            return Ok((Pid::from_raw(tid), Filters::None));
        }
    }
    filtered.ok_or(why)
}

// The bridge. Nothing on it changes flags or the stack, so these need no putting back; nor does the kernel.
std::arch::global_asm!(
    ".pushsection .rodata.libdirty_bridge, \"a\"",
    ".balign 16",
    ".globl libdirty_bridge",
    ".hidden libdirty_bridge",
    "libdirty_bridge:",
    "syscall",
    "mov edi, eax", // the descriptor; of an error close makes nothing
    "mov eax, 3",
    "syscall",
    "mov edi, 2", // SIG_SETMASK
    "lea rsi, [rip + 2f]",
    "mov edx, 0",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov rax, [rip + 2f + 8]",
    "mov rcx, [rip + 2f + 16]",
    "mov rdx, [rip + 2f + 24]",
    "mov rsi, [rip + 2f + 32]",
    "mov rdi, [rip + 2f + 40]",
    "mov r10, [rip + 2f + 48]",
    "mov r11, [rip + 2f + 56]",
    "jmp qword ptr [rip + 2f + 64]",
    ".org libdirty_bridge + 112, 0xcc", // eight times CODE
    "2:",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "libdirty_bridge"]
    static BRIDGE: [u64; CODE];
}

/// Words of the bridge's code, and of what follows it: mask, registers, where to go, and the thread whose bridge it is.
const CODE: usize = 14;
const DATA: usize = 10;

/// A bridge in the target for one thread.
struct Bridge {
    start: u64,
    /// The word that names its owner; 0: none.
    owner: u64,
}

impl Bridge {
    /// Build one for the stopped thread `tid`, which is to go on with these registers and this mask.
    fn build(
        target: &Target,
        tid: Pid,
        registers: &libc::user_regs_struct,
        mask: u64,
    ) -> Result<Self, String> {
        let start = Self::place(target)?;
        // SAFETY: so many words of constants, see above.
        let code = unsafe { BRIDGE };
        let (rax, next) = resumption(registers);
        let libc::user_regs_struct { rcx, rdx, rsi, rdi, r10, r11, .. } = *registers;
        let data: [u64; DATA - 1] = [mask, rax, rcx, rdx, rsi, rdi, r10, r11, next];
        let owner = start + 8 * (CODE + DATA - 1) as u64;
        // First whose it is: whoever finds a half-built one leaves it alone.
        poke(tid, owner, tid.as_raw() as u64)?;
        for (index, word) in code.into_iter().chain(data).enumerate() {
            poke(tid, start + 8 * index as u64, word)?;
        }
        Ok(Bridge { start, owner })
    }

    /// Free room behind the vDSO.
    fn place(target: &Target) -> Result<u64, String> {
        const SIZE: usize = 8 * (CODE + DATA);
        let pid = target.pid();
        let maps = target.maps().text().map_err(|error| format!("reading its mappings: {error}"))?;
        let vdso =
            maps.iter().find(|map| map.pathname == MMapPath::Vdso).ok_or("it has no vDSO to call from")?;
        let (start, end) = vdso.address;
        let mut bytes = vec![0; (end - start) as usize];
        let memory = fs::File::open(format!("{}/mem", target.folder())).map_err(|error| error.to_string())?;
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start)
            .map_err(|error| format!("reading its vDSO: {error}"))?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let mut room = 0;
        for (number, slot) in bytes.rchunks_exact(SIZE).enumerate() {
            let words: Vec<u64> = slot.chunks_exact(8).map(word).collect();
            let owner = words[CODE + DATA - 1];
            // SAFETY: so many words of constants, see above.
            let code = unsafe { BRIDGE };
            let is_bridge = words[..CODE] == code;
            // Nothing yet, or one whose builder died.
            let is_begun = words[..CODE].iter().zip(&code).all(|(word, code)| word == code || *word == 0)
                && words[CODE..CODE + DATA - 1].iter().all(|word| *word == 0);
            if !is_bridge && !is_begun {
                break; // the vDSO itself
            }
            room += 1;
            if owner == 0 || !Path::new(&format!("/proc/{pid}/task/{owner}")).exists() {
                return Ok(end - ((number + 1) * SIZE) as u64);
            }
        }
        if room == 0 {
            return Err("there is no room behind its vDSO".into());
        }
        Err(format!(
            "{room} trackers were killed while they attached to threads that live still: no room is left"
        ))
    }
}

/// The value of `rax` and the address with which the thread goes on: where a system call was interrupted, it makes it
/// again, as the kernel would have it do.
fn resumption(registers: &libc::user_regs_struct) -> (u64, u64) {
    const SYSCALL_LENGTH: u64 = 2;
    let again = match registers.rax.cast_signed() {
        -514..=-512 => Some(registers.orig_rax), // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
        -516 => Some(libc::SYS_restart_syscall as u64), // ERESTART_RESTARTBLOCK
        _ => None,
    };
    match again.filter(|_| registers.orig_rax != u64::MAX) {
        Some(number) => (number, registers.rip - SYSCALL_LENGTH),
        None => (registers.rax, registers.rip),
    }
}

fn poke(tid: Pid, address: u64, word: u64) -> Result<(), String> {
    ptrace::write(tid, address as *mut libc::c_void, word.cast_signed())
        .map_err(|error| format!("writing behind its vDSO: {error}"))
}

/// A thread of the target in a ptrace stop; let go as it is when dropped.
struct Stopped {
    tid: Pid,
    registers: libc::user_regs_struct,
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
        while is_in_restartable_sequence(target, tid) {
            if begin.elapsed() > PATIENCE {
                return Err(format!("thread {tid} does not leave its restartable sequence"));
            }
            ptrace::cont(tid, None).map_err(|error| format!("thread {tid}: {error}"))?;
            std::thread::sleep(Duration::from_micros(50));
            ptrace::interrupt(tid).map_err(|error| format!("ptrace interrupt of thread {tid}: {error}"))?;
            wait_for_trap(tid)?;
        }
        // Asked again, for it may have changed until it stopped.
        match (seccomp::is_filtered(target, tid)?, filters) {
            (true, Filters::None) => {
                return Err(format!("thread {tid} has just gone under seccomp: try again"));
            }
            (true, Filters::Suspend) => seccomp::suspend(tid, libc::PTRACE_O_TRACESYSGOOD)?,
            (false, _) => {}
        }
        let registers = ptrace::getregs(tid).map_err(|error| format!("its registers: {error}"))?;
        if registers.cs != 0x33 {
            return Err("it is not a 64-bit process".into());
        }
        if dispatches_syscalls(tid) {
            return Err("its system calls go to a handler of its own (syscall user dispatch)".into());
        }
        let mut mask = 0u64;
        sigmask(tid, libc::PTRACE_GETSIGMASK, &mut mask)
            .map_err(|error| format!("its signal mask: {error}"))?;
        Ok(Stopped { tid, registers, mask })
    }

    /// Send it over a bridge that begins with this system call of one argument.
    fn enter(self, target: &Target, number: i64, argument: i64) -> Result<Crossing, String> {
        let bridge = Bridge::build(target, self.tid, &self.registers, self.mask)?;
        let mut registers = self.registers;
        registers.rip = bridge.start;
        registers.rax = number.cast_unsigned();
        registers.rdi = argument.cast_unsigned();
        // No system call was interrupted, as far as these registers go: nothing to restart.
        registers.orig_rax = u64::MAX;
        let crossing = Crossing { stopped: self, bridge };
        let tid = crossing.stopped.tid;
        ptrace::setregs(tid, registers).map_err(|error| format!("its registers: {error}"))?;
        // Not before: only the bridge would put the mask back.
        sigmask(tid, libc::PTRACE_SETSIGMASK, &mut u64::MAX.clone())
            .map_err(|error| format!("its signal mask: {error}"))?;
        Ok(crossing)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Fails where it was let go already, or has ended. One on a bridge goes on there.
        let _ = ptrace::detach(self.tid, None);
    }
}

/// A thread on its bridge; put back and let go when dropped.
struct Crossing {
    stopped: Stopped,
    bridge: Bridge,
}

impl Crossing {
    /// Let it make its next system call.
    fn call(&self) -> Result<i64, Errno> {
        self.to_syscall_stop()?; // entry
        self.to_syscall_stop()?; // exit
        let result = ptrace::getregs(self.stopped.tid)?.rax.cast_signed();
        if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result) }
    }

    fn to_syscall_stop(&self) -> Result<(), Errno> {
        let mut signal = 0;
        loop {
            resume(self.stopped.tid, libc::PTRACE_SYSCALL, signal)?;
            signal = match wait(self.stopped.tid)? {
                Stop::Syscall => return Ok(()),
                // A group stop holds again once we let go.
                Stop::Trap => 0,
                // All signals are masked: this is SIGSTOP, which only stops the group.
                Stop::Signal(signal) => signal,
            }
        }
    }

    fn put_back(&self) -> Result<(), String> {
        let Stopped { tid, registers, mask } = &self.stopped;
        let tid = *tid;
        // A stop within the kernel's signal delivery, which looks at a system call to restart when it goes on.
        ptrace::interrupt(tid).map_err(|error| error.to_string())?;
        ptrace::cont(tid, None).map_err(|error| error.to_string())?;
        wait_for_trap(tid)?;
        sigmask(tid, libc::PTRACE_SETSIGMASK, &mut mask.clone()).map_err(|error| error.to_string())?;
        ptrace::setregs(tid, *registers).map_err(|error| error.to_string())?;
        poke(tid, self.bridge.owner, 0)?;
        ptrace::detach(tid, None).map_err(|error| error.to_string())
    }
}

impl Drop for Crossing {
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
        let mut status = 0;
        // SAFETY: `status` is valid for the write.
        let got = unsafe { libc::waitpid(tid.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG) };
        let has_ended = got > 0 && !libc::WIFSTOPPED(status);
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
