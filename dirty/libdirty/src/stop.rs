// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stops every thread of a process for a moment: for back ends that read the memory and arm it again in two steps.
//!
//! Each thread is seized by `ptrace(2)` and interrupted, pass after pass over `/proc/PID/task`, until a pass over
//! stopped threads finds none that is new. Detaching lets them go on: with the signal that one was about to take,
//! if that is what it stopped for, and stopped for good if the process was (group-stop). A helper does it, which
//! lives for this one stop: when it ends, or dies, the kernel releases what it has not released itself.
//!
//! - For another process the helper is a thread. The caller's process may see a SIGCHLD.
//! - A thread of the own process cannot be traced by another of it. There, as in LeakSanitizer, the helper is a
//!   process that shares the memory (`clone` with CLONE_VM), and all threads but the caller are stopped.
//!   They may hold any lock, that of `malloc` among them: *between stop and release nothing may be
//!   allocated*. The helper shares the caller's thread-local memory as well; its system calls leave `errno` alone.
//!
//! It gives up after some seconds, and where a thread may not be traced: by policy, or because someone traces it
//! already. Threads that the kernel runs for io_uring are stopped like any other, between two requests. Not stopped
//! are processes that share the memory without being threads of the process (`vfork`, `clone` with CLONE_VM).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use syscalls::{Errno, Sysno, syscall};

use crate::descriptor::Descriptor;
use crate::signals::Blocked;
use crate::target::Target;

/// How long to wait for threads to stop. One in the midst of a slow system call of the uninterruptible kind (a
/// dead network file system) may take longer; so may one that waits for its turn on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Threads of one process that can be held.
const MOST_THREADS: usize = 1 << 16;

/// Why threads could not be stopped; turned into words when all run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    Listing(Errno),
    TooMany,
    Refused(i32, Errno),
    Slow(i32),
    NoHelper,
}

impl Obstacle {
    fn text(self) -> String {
        match self {
            Obstacle::Listing(error) => format!("cannot list the threads: {error}"),
            Obstacle::TooMany => format!("the process has more than {MOST_THREADS} threads"),
            Obstacle::Refused(tid, error) => {
                format!("thread {tid} may not be traced (or somebody traces it already): {error}")
            }
            Obstacle::Slow(tid) => format!("thread {tid} did not stop within {PATIENCE:?}"),
            Obstacle::NoHelper => "the helper that stops threads could not be made, or died".into(),
        }
    }
}

/// What stopping one process takes, made beforehand.
#[derive(Debug)]
pub(crate) struct Stopper {
    own: bool,
    tasks: Descriptor<File>,
    shared: Memory<Shared>,
    stack: Memory<Stack>,
}

type Stack = [u8; 64 << 10];

/// What the caller and the helper share.
#[derive(Debug)]
struct Shared {
    /// One of the `STATE_*`, and a futex.
    state: AtomicU32,
    tasks: i32,
    /// The thread that is not to be stopped, and its process.
    caller: i32,
    caller_process: i32,
    obstacle: Option<Obstacle>,
    threads: Threads,
}

const STATE_WAIT: u32 = 0;
const STATE_STOP: u32 = 1;
const STATE_HELD: u32 = 2;
const STATE_FAILED: u32 = 3;
const STATE_RELEASE: u32 = 4;

/// The threads stopped or about to be.
#[derive(Debug)]
struct Threads {
    count: usize,
    held: [Thread; MOST_THREADS],
}

#[derive(Debug, Clone, Copy)]
struct Thread {
    tid: i32,
    /// 0 or the signal to pass on at release; `RUNNING` and `GONE` are no signals.
    signal: i32,
}

const RUNNING: i32 = -1;
const GONE: i32 = -2;

/// While it lives, no thread of the process runs, but for the caller. Nothing may be allocated, and no lock taken
/// that another thread may hold.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    stopper: &'a mut Stopper,
    helper: Option<Helper>,
    /// A handler could take its time, or jump away. Dropped last.
    _signals: Blocked,
}

#[derive(Debug)]
enum Helper {
    Process(i32),
    Thread(std::thread::JoinHandle<()>),
}

impl Stopper {
    /// # Errors
    /// What could not be had, in words.
    pub(crate) fn new(target: &Target) -> Result<Self, String> {
        let path = format!("/proc/{}/task", target.pid());
        let tasks = File::open(&path).and_then(Descriptor::new);
        let tasks = tasks.map_err(|error| format!("opening {path}: {error}"))?;
        let memory = |error| format!("memory to stop threads with: {error}");
        Ok(Stopper {
            own: target.is_own(),
            tasks,
            shared: Memory::new().map_err(memory)?,
            stack: Memory::new().map_err(memory)?,
        })
    }

    /// Stop every thread of the process, but for the caller.
    ///
    /// # Errors
    /// Why not, in words; then all run.
    pub(crate) fn hold(&mut self) -> Result<Held<'_>, String> {
        let signals = Blocked::new();
        let own = self.own;
        let mut held = Held { stopper: self, helper: None, _signals: signals };
        let shared = held.stopper.shared.get();
        shared.state.store(STATE_WAIT, Ordering::SeqCst);
        shared.obstacle = None;
        shared.threads.count = 0;
        shared.tasks = held.stopper.tasks.as_raw_fd();
        // SAFETY: no preconditions.
        shared.caller = unsafe { libc::gettid() };
        shared.caller_process = std::process::id().cast_signed();
        let done = match is_alone(shared) {
            Ok(true) if own => Ok(()),
            Ok(_) => held.stop(own),
            Err(obstacle) => Err(obstacle),
        };
        match done {
            Ok(()) => Ok(held),
            Err(obstacle) => {
                drop(held); // text allocates
                Err(obstacle.text())
            }
        }
    }
}

impl Held<'_> {
    fn stop(&mut self, own: bool) -> Result<(), Obstacle> {
        let shared = Pointer(self.stopper.shared.0.as_ptr());
        // SAFETY: the memory lives as long as the stopper. The helper alone uses all of it but for this
        // atomic, until the state says that it is done.
        let state = unsafe { &(*shared.0).state };
        let helper = if own {
            Helper::Process(clone_helper(&self.stopper.stack, shared)?)
        } else {
            let trace = move || {
                let shared = shared; // all of it, not the pointer inside
                // SAFETY: as above; the thread is joined before the stopper goes.
                trace(unsafe { &mut *shared.0 });
            };
            Helper::Thread(std::thread::Builder::new().spawn(trace).map_err(|_| Obstacle::NoHelper)?)
        };
        let helper = self.helper.insert(helper);
        signal(state, STATE_STOP);
        loop {
            match state.load(Ordering::SeqCst) {
                STATE_HELD => return Ok(()),
                STATE_FAILED => {
                    // SAFETY: the helper is done with it.
                    return Err(unsafe { (*shared.0).obstacle }.unwrap_or(Obstacle::NoHelper));
                }
                now => wait_while(state, now, Some(Duration::from_millis(100))),
            }
            if helper.has_died() && state.load(Ordering::SeqCst) == STATE_STOP {
                return Err(Obstacle::NoHelper);
            }
        }
    }
}

impl Helper {
    fn has_died(&self) -> bool {
        match self {
            Helper::Process(pid) => {
                let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
                let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
                // SAFETY: asks about a child of this process; the kernel fills the zeroed struct or leaves it.
                unsafe {
                    libc::waitid(libc::P_PID, pid.cast_unsigned(), info.as_mut_ptr(), flags) < 0
                        || info.assume_init().si_pid() != 0
                }
            }
            Helper::Thread(thread) => thread.is_finished(),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(helper) = self.helper.take() {
            // SAFETY: the atomic is everybody's.
            signal(unsafe { &(*self.stopper.shared.0.as_ptr()).state }, STATE_RELEASE);
            match helper {
                // It ends by itself. Another thread that waits for every kind of child may have reaped it.
                // SAFETY: waits for a child of this process; then takes back what was granted.
                Helper::Process(pid) => unsafe {
                    while libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) < 0
                        && *libc::__errno_location() == libc::EINTR
                    {}
                    libc::prctl(libc::PR_SET_PTRACER, 0);
                },
                Helper::Thread(thread) => drop(thread.join()),
            }
        }
    }
}

/// What the helper gets.
#[derive(Clone, Copy)]
struct Pointer(*mut Shared);

// SAFETY: see `Held::stop`: one side at a time uses it.
unsafe impl Send for Pointer {}

fn clone_helper(stack: &Memory<Stack>, shared: Pointer) -> Result<i32, Obstacle> {
    let flags = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_UNTRACED;
    // No exit signal: the program's own waiting for children does not see the helper.
    // SAFETY: a new process on a stack of its own, whose top is aligned; it calls nothing that has state.
    let pid = unsafe { libc::clone(helper, stack.0.as_ptr().add(1).cast(), flags, shared.0.cast()) };
    if pid < 0 {
        return Err(Obstacle::NoHelper);
    }
    // Where Yama restricts tracing, a process says who may trace it. An error says that there is no Yama.
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid) };
    Ok(pid)
}

/// The helper process. No allocation, no lock, no `errno`.
extern "C" fn helper(shared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: see `Held::stop`.
    let shared = unsafe { &mut *shared.cast::<Shared>() };
    // If the caller is killed, so is the helper, and the kernel releases the threads.
    // SAFETY: plain numbers.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: no arguments.
    if unsafe { syscall!(Sysno::getppid) } == Ok(shared.caller_process as usize) {
        trace(shared);
    }
    0
}

/// What a helper does: stop, wait, release.
fn trace(shared: &mut Shared) {
    while shared.state.load(Ordering::SeqCst) == STATE_WAIT {
        wait_while(&shared.state, STATE_WAIT, None);
    }
    match stop(shared) {
        Ok(()) => {
            signal(&shared.state, STATE_HELD);
            while shared.state.load(Ordering::SeqCst) == STATE_HELD {
                wait_while(&shared.state, STATE_HELD, None);
            }
            release(&shared.threads);
        }
        Err(obstacle) => {
            release(&shared.threads);
            shared.obstacle = Some(obstacle);
            signal(&shared.state, STATE_FAILED);
        }
    }
}

fn signal(state: &AtomicU32, value: u32) {
    state.store(value, Ordering::SeqCst);
    // SAFETY: a futex in memory that lives.
    let _ = unsafe { syscall!(Sysno::futex, state.as_ptr(), libc::FUTEX_WAKE, 1) };
}

fn wait_while(state: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let time = timeout.map(|time| libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a futex in memory that lives, and a time or none.
    let _ = unsafe { syscall!(Sysno::futex, state.as_ptr(), libc::FUTEX_WAIT, value, time) };
}

/// Whether the caller is the only thread of its process.
fn is_alone(shared: &mut Shared) -> Result<bool, Obstacle> {
    let (mut others, caller) = (0, shared.caller);
    each_thread(shared.tasks, |tid| {
        others += usize::from(tid != caller);
        Ok(())
    })?;
    Ok(others == 0)
}

/// Seize and stop everyone. When it fails some may be stopped.
fn stop(shared: &mut Shared) -> Result<(), Obstacle> {
    let since = Instant::now();
    loop {
        let (threads, caller, tasks) = (&mut shared.threads, shared.caller, shared.tasks);
        let before = threads.count;
        each_thread(tasks, |tid| {
            if tid == caller || threads.held[..threads.count].iter().any(|thread| thread.tid == tid) {
                return Ok(());
            }
            match ptrace(libc::PTRACE_SEIZE, tid, 0) {
                Ok(()) => {}
                Err(Errno::ESRCH) => return Ok(()),
                Err(_) if is_dead(tasks, tid) => return Ok(()),
                Err(error) => return Err(Obstacle::Refused(tid, error)),
            }
            let slot = threads.held.get_mut(threads.count).ok_or(Obstacle::TooMany)?;
            *slot = Thread { tid, signal: RUNNING };
            threads.count += 1;
            let _ = ptrace(libc::PTRACE_INTERRUPT, tid, 0); // fails where it has ended
            Ok(())
        })?;
        if threads.count == before {
            return Ok(());
        }
        wait_for_stops(tasks, &mut threads.held[before..threads.count], since)?;
    }
}

fn wait_for_stops(tasks: i32, threads: &mut [Thread], since: Instant) -> Result<(), Obstacle> {
    let mut turns = 0u32;
    loop {
        let mut slow = None;
        for thread in threads.iter_mut().filter(|thread| thread.signal == RUNNING) {
            match stopped_by(thread.tid) {
                Some(signal) => thread.signal = signal,
                // The first thread of a process waits, dead, for the others, and cannot be waited for.
                None if turns % 64 == 63 && is_dead(tasks, thread.tid) => thread.signal = GONE,
                None => slow = Some(thread.tid),
            }
        }
        let Some(slow) = slow else { return Ok(()) };
        if since.elapsed() > PATIENCE {
            return Err(Obstacle::Slow(slow));
        }
        turns += 1;
        if turns < 32 {
            // SAFETY: no arguments.
            let _ = unsafe { syscall!(Sysno::sched_yield) };
        } else {
            let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
            // SAFETY: a time, and no interest in what is left of it.
            let _ = unsafe { syscall!(Sysno::nanosleep, &raw const time, 0) };
        }
    }
}

/// The signal that a stopped thread is about to take, 0 if none, `GONE` if it has ended; nothing if it runs.
fn stopped_by(tid: i32) -> Option<i32> {
    const PTRACE_EVENT_STOP: i32 = 128;
    let mut status: libc::c_int = 0;
    // SAFETY: the kernel writes the status.
    let waited = unsafe {
        syscall!(Sysno::wait4, tid, &raw mut status, libc::__WALL | libc::WNOHANG, std::ptr::null::<u8>())
    };
    match waited {
        Ok(0) => None,
        Ok(_) if !libc::WIFSTOPPED(status) => Some(GONE),
        Ok(_) if status >> 16 == PTRACE_EVENT_STOP => Some(0),
        Ok(_) => Some(libc::WSTOPSIG(status)),
        Err(_) => None, // somebody else has taken the news: it counts as slow
    }
}

/// Let the stopped ones go on. One that has not stopped goes on when the helper ends.
fn release(threads: &Threads) {
    for thread in &threads.held[..threads.count] {
        if thread.signal >= 0 {
            let _ = ptrace(libc::PTRACE_DETACH, thread.tid, thread.signal);
        }
    }
}

fn ptrace(request: libc::c_uint, tid: i32, data: i32) -> Result<(), Errno> {
    // SAFETY: the requests used here take numbers only.
    unsafe { syscall!(Sysno::ptrace, request, tid, 0, data) }.map(|_| ())
}

/// Call `visit` with every thread in the directory `tasks`.
fn each_thread(tasks: i32, mut visit: impl FnMut(i32) -> Result<(), Obstacle>) -> Result<(), Obstacle> {
    const NAME: usize = 19; // of struct linux_dirent64
    let mut buffer = [0u64; 512];
    // SAFETY: plain numbers.
    unsafe { syscall!(Sysno::lseek, tasks, 0, libc::SEEK_SET) }.map_err(Obstacle::Listing)?;
    loop {
        // SAFETY: the kernel fills at most the buffer.
        let filled = unsafe { syscall!(Sysno::getdents64, tasks, buffer.as_mut_ptr(), size_of_val(&buffer)) }
            .map_err(Obstacle::Listing)?;
        if filled == 0 {
            return Ok(());
        }
        // SAFETY: the buffer's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), filled) };
        let mut at = 0;
        while at + NAME < filled {
            let entry = &bytes[at..];
            at += usize::from(u16::from_ne_bytes([entry[16], entry[17]])).max(NAME);
            let name = &entry[NAME..];
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let tid = digits.fold(0, |tid: i32, digit| tid * 10 + i32::from(digit - b'0'));
            if tid != 0 {
                visit(tid)?;
            }
        }
    }
}

/// Whether a thread has ended, though it is listed.
fn is_dead(tasks: i32, tid: i32) -> bool {
    let mut path = [0u8; 24];
    let mut at = 10;
    let mut rest = tid;
    while rest > 0 && at > 0 {
        at -= 1;
        path[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[10..16].copy_from_slice(b"/stat\0");
    let mut stat = [0u8; 64];
    // SAFETY: a path that ends in 0; the kernel fills at most the buffer.
    let read = unsafe {
        let Ok(fd) = syscall!(Sysno::openat, tasks, path[at..].as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
        else {
            return true;
        };
        let read = syscall!(Sysno::read, fd, stat.as_mut_ptr(), stat.len());
        let _ = syscall!(Sysno::close, fd);
        read
    };
    // "TID (name) S ...", where the name, at most 15 bytes, may hold parentheses.
    let Ok(length) = read else { return true };
    let state = stat[..length].iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'Z' | b'X') | None)
}

/// Zeroed memory of its own, given by the kernel where it is used.
#[derive(Debug)]
struct Memory<T>(NonNull<T>);

// SAFETY: it owns the memory alone.
unsafe impl<T> Send for Memory<T> {}

impl<T> Memory<T> {
    fn new() -> io::Result<Self> {
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(memory.cast()).map(Memory).ok_or_else(|| io::Error::other("mmap returned page 0"))
    }

    fn get(&mut self) -> &mut T {
        // SAFETY: mapped until drop; zero is a value of every type that it is used with.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    fn counts(counters: &[AtomicU64]) -> Vec<u64> {
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect()
    }

    /// Wait until every counter has grown.
    fn all_run(counters: &[AtomicU64]) {
        let before = counts(counters);
        while counts(counters).iter().zip(&before).any(|(now, before)| now == before) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stopped_for_a_while(counters: &[AtomicU64]) -> bool {
        // Nothing is allocated while threads are held: they may hold malloc's lock.
        let mut before = [0; 16];
        let read = |into: &mut [u64; 16]| {
            for (slot, counter) in into.iter_mut().zip(counters) {
                *slot = counter.load(Ordering::SeqCst);
            }
        };
        read(&mut before);
        std::thread::sleep(Duration::from_millis(20));
        let mut after = [0; 16];
        read(&mut after);
        before == after
    }

    static TAKEN: AtomicU64 = AtomicU64::new(0);

    extern "C" fn take(_: libc::c_int) {
        TAKEN.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn threads_of_the_own_process_stop_and_go_on() {
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGUSR1, take as *const () as usize) };
        let counters: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let threads: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        let target = Target::own().unwrap();
        let mut stopper = Stopper::new(&target).unwrap();
        std::thread::scope(|scope| {
            for (counter, thread) in counters.iter().zip(&threads) {
                let stop = &stop;
                scope.spawn(move || {
                    // SAFETY: no preconditions.
                    thread.store(unsafe { libc::pthread_self() }, Ordering::SeqCst);
                    while !stop.load(Ordering::Relaxed) {
                        drop(std::hint::black_box(vec![0u8; 64])); // holds malloc's lock now and then
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let mut sent = 0;
            for _ in 0..30 {
                all_run(&counters);
                for thread in &threads {
                    // SAFETY: the thread runs until it is asked to stop.
                    unsafe { libc::pthread_kill(thread.load(Ordering::SeqCst), libc::SIGUSR1) };
                    sent += 1;
                }
                let held = stopper.hold();
                let is_still = stopped_for_a_while(&counters);
                let refused = held.err();
                assert!(refused.is_none(), "{refused:?}");
                assert!(is_still);
                // Signals of one number do not queue: let these arrive before the next.
                while TAKEN.load(Ordering::SeqCst) < sent {
                    std::thread::yield_now();
                }
            }
            all_run(&counters);
            assert_eq!(TAKEN.load(Ordering::SeqCst), sent, "no signal was lost or doubled");
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_of_another_process_stop_and_go_on() {
        // SAFETY: shared memory for counters, at an address of the kernel's choice.
        let counters = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let memory =
                libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            std::slice::from_raw_parts(memory as *const AtomicU64, 10)
        };
        // SAFETY: the child only counts, handles signals and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain numbers. A test that fails leaves no child behind.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            extern "C" fn count(_: libc::c_int) {
                let counters = TAKEN.load(Ordering::SeqCst) as *const AtomicU64;
                // SAFETY: the counters are inherited, at an address that was left in this variable.
                unsafe { (*counters.add(9)).fetch_add(1, Ordering::SeqCst) };
            }
            TAKEN.store(counters.as_ptr() as u64, Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { libc::signal(libc::SIGUSR1, count as *const () as usize) };
            for counter in &counters[..8] {
                std::thread::spawn(|| {
                    loop {
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        let target = Target::process(child).unwrap();
        let mut stopper = Stopper::new(&target).unwrap();
        for round in 1..=30 {
            all_run(&counters[..8]);
            // SAFETY: the child of this test.
            unsafe { libc::kill(child, libc::SIGUSR1) };
            let held = stopper.hold().unwrap();
            assert!(stopped_for_a_while(counters));
            drop(held);
            while counters[9].load(Ordering::SeqCst) < round {
                std::thread::yield_now();
            }
            assert_eq!(counters[9].load(Ordering::SeqCst), round);
        }
        all_run(&counters[..8]);

        // A stopped process stays stopped.
        // SAFETY: the child of this test.
        unsafe {
            libc::kill(child, libc::SIGSTOP);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED), child);
        }
        drop(stopper.hold().unwrap());
        assert!(stopped_for_a_while(counters));
        // SAFETY: as above.
        unsafe { libc::kill(child, libc::SIGCONT) };
        all_run(&counters[..8]);

        // A thread that another process traces cannot be stopped, and then none is.
        // SAFETY: the child of this test; the requests take numbers only.
        unsafe { libc::ptrace(libc::PTRACE_SEIZE, child, 0, 0) };
        let refused = stopper.hold().expect_err("it is traced");
        assert!(refused.contains(&format!("thread {child} may not be traced")), "{refused}");
        all_run(&counters[..8]);

        // SAFETY: as above; and the counters, which nobody uses any more.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            libc::munmap(counters.as_ptr().cast_mut().cast(), 4096);
        }
        assert!(stopper.hold().is_err());
    }
}
