// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which descriptors are a `pagemap` or a `clear_refs`, and whose.
//!
//! A file is known by what was opened, not by the path that was given: relative paths, links and directory
//! descriptors all lead to the same name in `/proc/self/fd`.
//!
//! The table is read without a lock. It may be out of date, for a descriptor can be closed behind the shim's back
//! (`close_range`, `fclose`): what a slot says is believed only if the descriptor still has the same inode.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::criu_cache;
use crate::hold;
use crate::kernel;
use crate::known::{Kind, Known};
use crate::lock;
use crate::own;

/// All zero: nothing of ours.
#[derive(Debug, Default)]
struct Slot {
    known: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
}

const SLOTS: usize = 1024;
/// Descriptors below 2^20, the kernel's default limit (fs.nr_open).
static TABLE: [AtomicPtr<[Slot; SLOTS]>; 1024] = [const { AtomicPtr::new(null_mut()) }; 1024];

/// The process whose descriptors the table has; see [`whose_table`].
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn slot(fd: c_int) -> Option<&'static Slot> {
    let fd = usize::try_from(fd).ok()?;
    // SAFETY: null, or a chunk that is never freed.
    let chunk = unsafe { TABLE.get(fd / SLOTS)?.load(Ordering::Acquire).as_ref() }?;
    Some(&chunk[fd % SLOTS])
}

/// The slot of `fd`, made if need be; `None` above the table or without memory.
fn make_slot(fd: c_int) -> Option<&'static Slot> {
    if let Some(slot) = slot(fd) {
        return Some(slot);
    }
    let entry = TABLE.get(usize::try_from(fd).ok()? / SLOTS)?;
    let length = size_of::<[Slot; SLOTS]>();
    let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping, at an address of the kernel's choice; zeroes are empty slots.
    let chunk = unsafe { libc::mmap(null_mut(), length, access, private, -1, 0) };
    if chunk == libc::MAP_FAILED {
        return None;
    }
    if entry.compare_exchange(null_mut(), chunk.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first; nobody has seen this one.
        unsafe { libc::munmap(chunk, length) };
    }
    slot(fd)
}

/// The cheap look: whether `fd` may be ours.
pub(crate) fn is_candidate(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| slot.known.load(Ordering::Relaxed) != 0)
}

/// What `fd` stands for, if it still does.
pub(crate) fn known(fd: c_int) -> Option<Known> {
    let slot = slot(fd)?;
    let known = Known::unpack(slot.known.load(Ordering::Acquire))?;
    let (device, inode) = (slot.device.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed));
    let now = status(fd)?;
    (now.st_dev == device && now.st_ino == inode).then_some(known)
}

/// Enter what `fd` stands for.
///
/// # Errors
/// It cannot be entered.
fn enter(fd: c_int, known: Known, status: &libc::stat) -> Result<(), c_int> {
    lock::guard_forks(after_fork);
    match whose_table() {
        Whose::Own => {}
        Whose::Parents => return Ok(()), // the file is for the program that will be executed
        Whose::Unknown => return Err(libc::EMFILE),
    }
    let slot = make_slot(fd).ok_or(libc::EMFILE)?;
    slot.device.store(status.st_dev, Ordering::Relaxed);
    slot.inode.store(status.st_ino, Ordering::Relaxed);
    slot.known.store(known.pack(), Ordering::Release);
    Ok(())
}

/// `fd` is being closed.
pub(crate) fn forget(fd: c_int) {
    if let Some(slot) = slot(fd).filter(|_| whose_table() == Whose::Own) {
        slot.known.store(0, Ordering::Relaxed);
    }
}

/// `new` has become a copy of `old`.
///
/// # Errors
/// It cannot be answered.
pub(crate) fn copied(old: c_int, new: c_int) -> Result<(), c_int> {
    if let (Some(known), Some(status)) = (known(old), status(old)) {
        return enter(new, known, &status);
    }
    if is_candidate(new) {
        forget(new);
    }
    Ok(())
}

/// A file was opened as `fd`. Takes no lock: a tracker's own threads open files while another waits for them under it.
///
/// # Errors
/// It is one of ours and cannot be answered, or one that is not to be seen.
pub(crate) fn opened(fd: c_int) -> Result<(), c_int> {
    if is_candidate(fd) {
        forget(fd);
    }
    let Some(status) = status(fd) else { return Ok(()) };
    // Both are regular files without a size, readable or writable by their owner alone, of a file system
    // without a device. Nearly all files end here.
    let is_similar = status.st_mode & libc::S_IFMT == libc::S_IFREG
        && matches!(status.st_mode & 0o777, 0o400 | 0o200)
        && status.st_size == 0
        && libc::major(status.st_dev) == 0;
    if !is_similar {
        let is_refused = criu_cache::may_be(&status) && criu_cache::is_refused(fd, &status);
        return if is_refused { Err(libc::ENOENT) } else { Ok(()) };
    }
    match recognize(fd) {
        Some(known) => {
            // Of another process, where the module answers for the own, as if it did not.
            let is_answered = known.pid.is_some_and(|pid| hold::answers_for(pid) || own::answers_for(pid));
            if !is_answered && !kernel::is_answered_here() {
                return Ok(());
            }
            if known.kind == Kind::Pagemap {
                hold::opened();
            }
            enter(fd, known, &status)
        }
        None => Ok(()),
    }
}

/// Whose descriptors the table in this memory has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Own,
    /// This is a child of `vfork`: its descriptors are others, in the memory of its parent.
    Parents,
    Unknown,
}

fn whose_table() -> Whose {
    const KCMP_VM: c_int = 1;
    let own = std::process::id();
    match PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => return Whose::Own,
        Err(process) if process == own => return Whose::Own,
        Err(_) => {}
    }
    // A child that `fork` did not make; with a copy of the memory (`clone`) or with the same.
    // SAFETY: plain numbers.
    let compared =
        unsafe { libc::syscall(libc::SYS_kcmp, own, PROCESS.load(Ordering::Relaxed), KCMP_VM, 0, 0) };
    let is_parent_gone = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    match compared {
        0 => Whose::Parents,
        // A parent that waits in vfork is there.
        compared if compared > 0 || is_parent_gone() => {
            PROCESS.store(own, Ordering::Relaxed);
            lock::hold(crate::answer::forget_trackers);
            Whose::Own
        }
        _ => Whose::Unknown,
    }
}

fn after_fork() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    crate::answer::forget_trackers();
}

fn status(fd: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: the call fills the struct when it returns 0.
    unsafe { (libc::fstat(fd, status.as_mut_ptr()) == 0).then(|| status.assume_init()) }
}

/// Room for a path. A longer one is cut, and is none of ours.
pub(crate) type Path = [u8; 256];

/// What the file behind `fd` is called; the byte behind it is 0.
pub(crate) fn path_of(fd: c_int, room: &mut Path) -> Option<&[u8]> {
    // "/proc/self/fd/" and a number, made without allocating.
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0; 10];
    let mut number = fd.cast_unsigned();
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    link[14..][..digits.len() - first].copy_from_slice(&digits[first..]);
    room.fill(0);
    // SAFETY: a path that ends in NUL, and room of the length given.
    let length = unsafe { libc::readlink(link.as_ptr().cast(), room.as_mut_ptr().cast(), room.len() - 1) };
    Some(&room[..usize::try_from(length).ok()?])
}

/// What the file behind `fd` stands for.
fn recognize(fd: c_int) -> Option<Known> {
    let mut room = [0; 256];
    let name = path_of(fd, &mut room)?;
    let kind = if name.ends_with(b"/pagemap") {
        Kind::Pagemap
    } else if name.ends_with(b"/clear_refs") {
        Kind::ClearRefs
    } else {
        return None;
    };
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the call fills the struct when it returns 0.
    let of = unsafe { (libc::fstatfs(fd, system.as_mut_ptr()) == 0).then(|| system.assume_init().f_type) }?;
    if of != libc::PROC_SUPER_MAGIC {
        return None;
    }
    let pid = name.strip_prefix(b"/proc/").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'/')?;
        str::from_utf8(&rest[..end]).ok()?.parse().ok().filter(|pid| *pid > 0)
    });
    Some(Known { kind, pid })
}
