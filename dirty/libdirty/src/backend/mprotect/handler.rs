// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SIGSEGV handler: one for the process. It passes every fault that is not ours on to the handler that was
//! installed before.
//!
//! - It runs with every signal blocked, takes no lock, allocates nothing, keeps `errno`, and has finished using its
//!   table before it calls another handler, which may leave by a jump.
//! - An earlier handler is called as the kernel would call it: with its `sa_mask` added to what the interrupted code
//!   blocked. But SIGSEGV itself is never blocked: the handler may write watched memory, and a fault with SIGSEGV
//!   blocked ends the process. All run on the alternate stack if the thread has one (SA_ONSTACK): ours must, since the
//!   stack may be watched. SIG_DFL and SIG_IGN act as they would have.
//! - It stays installed when nothing is watched any more: a thread may have faulted before and not have reached the
//!   handler yet. (To distinguish such a fault from the program's own takes Linux 5.14.)
//! - A handler that is installed after ours may call ours, and be called by it once ours is on top again: a mark in
//!   the unused tail of `siginfo_t` records that a fault was passed on, and how often.
//!
//! What this means for the program: code that runs with SIGSEGV blocked must not write watched memory, and a
//! thread whose stack is watched needs an alternate stack that is not.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Once};

use super::order;
use super::registry::{self, Previous, Table};
use super::segments::Segment;
use super::store;
use crate::extent::{PageRange, Reason, page_size};

const SEGV_ACCERR: c_int = 2;

type Action = extern "C" fn(c_int);
type DetailedAction = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Enter what is on top of ours now, or was before ours came, into the table. [`activate`] follows.
pub(super) fn prepare(table: &mut Table) {
    static FORK: Once = Once::new();
    FORK.call_once(|| {
        // SAFETY: registers a function that lives as long as the program.
        unsafe { libc::pthread_atfork(None, None, Some(registry::start_anew)) };
    });
    if let Some(action) = current().filter(|now| !is_ours(now)) {
        // Faults may have been lost meanwhile.
        for watch in table.segments.iter().flat_map(|segment| segment.watches.iter()) {
            watch.raise_doubt(Reason::ProtectionChanged);
        }
        // One that comes and goes is still one.
        let is_same = |known: &Previous| {
            (known.action.sa_sigaction, known.action.sa_flags) == (action.sa_sigaction, action.sa_flags)
        };
        table.previous.retain(|known| !is_same(known));
        table.previous.insert(0, Previous { action, is_spent: Arc::default() });
    }
}

/// Make the kernel call ours; the table that names what was there before is in place.
pub(super) fn activate() {
    // SAFETY: the struct is plain numbers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: fills the mask of the struct, then hands it to the kernel. The handler lives as long as the program.
    // It cannot fail: the signal and the action are valid.
    unsafe {
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGSEGV, &raw const action, null_mut());
    }
}

/// Whether the kernel calls our handler.
pub(super) fn is_on_top() -> bool {
    current().is_some_and(|now| is_ours(&now))
}

fn current() -> Option<libc::sigaction> {
    // SAFETY: the struct is plain numbers, for which zero is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the kernel fills the struct.
    (unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now) } == 0).then_some(now)
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel's, or that of a handler which passes the kernel's on.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: as above.
    let is_ours = code == SEGV_ACCERR && unsafe { store::is_store(context) } && settle(address);
    if !is_ours {
        // SAFETY: as above; the table is not in use any more.
        unsafe { pass_on(signal, info, context) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Let the store at `address` go on, whether the page is watched or no longer is. False when the fault is not ours.
fn settle(address: usize) -> bool {
    loop {
        let before = registry::changes();
        if registry::read(|table| table.is_some_and(|table| resolve(table, address)))
            || is_writable_by_now(address)
        {
            return true;
        }
        // Not watched when the table was read, and watched again when the page was tried?
        if registry::changes() == before {
            return false;
        }
    }
}

/// Lift the protection of the page at `address` and mark it. False when the fault is not ours.
fn resolve(table: &Table, address: usize) -> bool {
    let Some(segment) = table.segments.find(address) else { return false };
    if segment.protection & libc::PROT_WRITE == 0 {
        return false;
    }
    let start = address & !(page_size() - 1);
    let page = PageRange::trusted(start, start + page_size());
    let mark = || {
        for watch in segment.watches.iter() {
            watch.written.put(watch.written.index(start), true);
        }
    };
    order::fault(|| protect(page, segment.protection), mark) || relieve(table, segment)
}

/// Whether the store would succeed now: it faulted on our protection, and the memory ceased to be watched before the
/// fault reached this handler.
fn is_writable_by_now(address: usize) -> bool {
    let start = address & !(page_size() - 1);
    // SAFETY: gives the page a frame, as the store itself would, or fails; its content stays.
    unsafe { libc::madvise(start as *mut c_void, page_size(), libc::MADV_POPULATE_WRITE) == 0 }
}

/// Remove the protection of all memory around: the process has no room for more mappings (`vm.max_map_count`), and
/// this merges those of single pages. Also for huge pages, which cannot be protected in part.
fn relieve(table: &Table, segment: &Segment) -> bool {
    let around = table.segments.around(segment);
    let mark = || {
        let watches = table.segments.within(around).flat_map(|(_, segment)| segment.watches.iter());
        watches.for_each(|watch| watch.raise_doubt(Reason::Overflow));
    };
    order::fault(|| protect(around, segment.protection), mark)
}

/// Give `range` back the protection that the program chose; if there is no room for its borders, everything around
/// with it.
pub(super) fn lift(range: PageRange, protection: i32) {
    if !protect(range, protection) {
        let relieve =
            |table: &Table| table.segments.find(range.start()).is_some_and(|found| relieve(table, found));
        // It fails only where the memory is gone.
        registry::read(|table| table.is_some_and(relieve));
    }
}

/// `mprotect(2)`; true when it was done.
pub(super) fn protect(range: PageRange, protection: i32) -> bool {
    // SAFETY: the memory is the program's; it is given a protection that the program chose, or less.
    unsafe { libc::mprotect(range.start() as *mut c_void, range.len(), protection) == 0 }
}

/// How far a fault was passed on, kept in the tail of `siginfo_t`, which the kernel zeroes and nobody uses.
#[repr(C)]
struct Passed {
    magic: u64,
    count: u64,
}

const MAGIC: u64 = 0x6c69_6264_6972_7479; // "libdirty"

/// What comes next for a fault that is not ours.
enum Next {
    Call(libc::sigaction),
    Default,
    Nothing,
}

/// # Safety
/// The arguments are those of a handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the last 16 of the struct's 128 bytes, aligned as it is.
    let passed = unsafe { &mut *info.add(1).cast::<Passed>().sub(1) };
    if passed.magic != MAGIC {
        *passed = Passed { magic: MAGIC, count: 0 };
    }
    let level = passed.count as usize;
    passed.count += 1;
    // SAFETY: by contract.
    let was_sent = unsafe { (*info).si_code <= 0 };
    let next = registry::read(|table| {
        let Some(previous) = table.and_then(|table| table.previous.get(level)) else { return Next::Default };
        let action = previous.action;
        match action.sa_sigaction {
            libc::SIG_DFL => Next::Default,
            libc::SIG_IGN if was_sent => Next::Nothing,
            libc::SIG_IGN => Next::Default, // no ignoring a fault
            _ if action.sa_flags & libc::SA_RESETHAND != 0 && previous.is_spent.swap(true, SeqCst) => {
                Next::Default
            }
            _ => Next::Call(action),
        }
    });
    match next {
        Next::Nothing => {}
        // SAFETY: by contract, and an action that the kernel gave us.
        Next::Call(action) => unsafe { call(&action, signal, info, context) },
        Next::Default => {
            // The instruction faults again at return, and the process ends there as it would have without us.
            // SAFETY: plain system calls.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if was_sent {
                    libc::raise(signal);
                }
            }
        }
    }
}

/// # Safety
/// The arguments are those of a handler, and `action` is what the program installed.
unsafe fn call(action: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: by contract; the masks are whole sets, and the kernel's when they come from the context.
    unsafe {
        let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        for other in 1..=libc::SIGRTMAX() {
            if libc::sigismember(&raw const action.sa_mask, other) == 1 {
                libc::sigaddset(&raw mut mask, other);
            }
        }
        libc::sigdelset(&raw mut mask, libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut());
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            std::mem::transmute::<usize, DetailedAction>(action.sa_sigaction)(signal, info, context);
        } else {
            std::mem::transmute::<usize, Action>(action.sa_sigaction)(signal);
        }
    }
}
