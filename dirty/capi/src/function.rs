// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exported functions: arguments are checked here, the work is done behind [`crate::handle`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use libdirty::{Dirty, PageRange, Tracker};

use crate::call::{call, call_text, call_unstopped};
use crate::capability::{self, Capabilities};
use crate::failure::{self, Failure, Outcome};
use crate::session::{Extent, Session};
use crate::{handle, reason};

/// Make a tracker that watches nothing yet.
///
/// pid: the process to track, 0 for the calling one. For another process the caller needs the permission to ptrace it.
/// backend: "mprotect", "soft-dirty", "uffd-sync", "uffd-async", "dbit", "spml" or "epml": this one, or fail. NULL or
/// "auto": the cheapest that works here, which is found by trying.
/// flags: 0.
///
/// Returns the tracker's handle, which is above 2^32 and never given out twice, or -EINVAL (back end or flags unknown),
/// -ESRCH (no such process), -EPERM, -EOPNOTSUPP (the back end, or every one, does not work here; dirty_last_error()
/// says why), or an error of the kernel (-EMFILE, ...).
///
/// # Safety
/// backend is NULL or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dirty_open(pid: libc::pid_t, backend: *const c_char, flags: u32) -> i64 {
    call(|| {
        let mut builder = Tracker::builder();
        // SAFETY: as the caller promises.
        match unsafe { text(backend) } {
            Some(name) if name != c"auto" => builder = builder.backend(capability::parse(name)?),
            _ => {}
        }
        if flags != 0 {
            return Err(Failure::new(libc::EINVAL, format!("dirty_open: unknown flags {flags:#x}")));
        }
        let tracker = if pid == 0 { builder.own()? } else { builder.process(pid)? };
        Ok(handle::own_table().insert(Session::new(tracker)))
    })
}

/// Make a tracker of process pid (0: the calling one) with a userfaultfd that this process has made itself, and from
/// which the caller has it: by SCM_RIGHTS, pidfd_getfd(2) or a parasite. For a process that may not be made to call
/// userfaultfd(2): one under seccomp, or one that a debugger holds by ptrace, be it the caller. Nothing is injected, and
/// ptrace is not used; the caller needs the permission to ptrace the process all the same.
///
/// The back end is uffd-async. The userfaultfd may have been made with any flags. Best is one that is not initialised
/// (UFFDIO_API); it then is by this call, even if the call fails. The tracker keeps a copy of the descriptor until it is
/// closed; the caller's is the caller's to close.
///
/// Returns a handle as dirty_open(), or -EOPNOTSUPP (it is no userfaultfd, or not one for the memory of this process, or
/// one initialised without asynchronous write protection; or the back end does not work here; dirty_last_error() says
/// which), -EBADF (no open descriptor), -ESRCH, -EPERM, or an error of the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_open_fd(pid: libc::pid_t, userfaultfd: c_int) -> i64 {
    call(|| {
        if userfaultfd < 0 {
            return Err(not_open(userfaultfd, &std::io::Error::from_raw_os_error(libc::EBADF)));
        }
        // SAFETY: plain numbers; returns a new descriptor or -1.
        let copy = unsafe { libc::fcntl(userfaultfd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(not_open(userfaultfd, &std::io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just returned it.
        let builder = Tracker::builder().userfaultfd(unsafe { OwnedFd::from_raw_fd(copy) });
        let tracker = if pid == 0 { builder.own()? } else { builder.process(pid)? };
        Ok(handle::own_table().insert(Session::new(tracker)))
    })
}

/// End a tracker. Its process runs on, untracked, as if it had never been tracked. Waits for calls that other threads
/// have in progress on this tracker; later calls get -EBADF.
///
/// Returns 0 or -EBADF, -EXDEV.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_close(handle: i64) -> c_int {
    call(|| {
        handle::table(handle)?.remove(handle)?;
        Ok(0)
    })
}

/// Watch length bytes from start, both multiples of the page size. The content at return is the baseline: later
/// writes are reported. Nothing needs to be mapped there yet: what appears later is reported and watched.
///
/// Returns 0 or -EINVAL (no range of pages in user space), -EEXIST (overlaps what is watched already), -ESRCH (the
/// process is gone), -EBADF, -EXDEV.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_watch(handle: i64, start: usize, length: libc::size_t) -> c_int {
    on_tracker(handle, |tracker| tracker.watch(PageRange::from_length(start, length)?))
}

/// Watch all of user space, but for what is watched already: whatever the process has mapped, and will map. Meant for
/// tracking another process; in the calling process it also watches the memory of the library and of its caller.
///
/// Returns as dirty_watch(), but never -EEXIST.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_watch_all(handle: i64) -> c_int {
    on_tracker(handle, Tracker::watch_all)
}

/// Stop watching a range; every page of it must be watched. Writes there that no collect has found are forgotten.
///
/// Returns 0 or -EINVAL, -ENOENT (not watched as a whole), -ESRCH, -EBADF, -EXDEV.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_unwatch(handle: i64, start: usize, length: libc::size_t) -> c_int {
    on_tracker(handle, |tracker| tracker.unwatch(PageRange::from_length(start, length)?))
}

/// Find the pages written since the last collect, or since they were watched, and arm them again. A write that races
/// with this call is reported by this collect or by the next. The extents are sorted, do not overlap, and wait for
/// dirty_read(). Read the memory itself only after this call.
///
/// This, the next three, dirty_read() and dirty_discard() may be called while other threads of the program are stopped
/// by a signal at any point, inside malloc() too, as a garbage collector stops them: these functions do not use the
/// program's allocator, and signals are blocked in them. But no thread may be stopped then inside dirty_open(),
/// dirty_close(), dirty_survey() or dirty_backend(): hold the lock under which threads are stopped around calls of these
/// four.
/// (None of this holds for tracking another process by soft-dirty.)
///
/// Returns the number of extents, or -EBUSY when some of the last collect or peek are unread (nothing was done; read or
/// discard them), -ESRCH when the end of the process, or its execve, was reported before, -EBADF, -EXDEV, or an error
/// of the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_collect(handle: i64) -> i64 {
    find(handle, Tracker::collect)
}

/// dirty_collect() for length bytes from start alone, both multiples of the page size; every page of it must be
/// watched. What was written elsewhere is reported by the first collect that covers it, whatever ranges are collected
/// until then.
///
/// "uffd-async", "uffd-sync" and "mprotect" look at the range alone, for the cost of its pages, except once after memory
/// in it was watched or mapped. The other back ends look at everything each time.
///
/// Returns as dirty_collect(), or -EINVAL (no range of pages in user space), -ENOENT (not watched as a whole). It is
/// -ESRCH when the end of the process, or its execve, was reported for all of the range.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_collect_range(handle: i64, start: usize, length: libc::size_t) -> i64 {
    find_in(handle, start, length, Tracker::collect_range)
}

/// Find what dirty_collect() would report now, and take nothing away: the next collect reports it all the same, with
/// what is written until then. So copy pages after the collect that reports them, and not only after a peek. The extents
/// wait for dirty_read(), or for dirty_discard(), which only forgets this answer.
///
/// It costs what a collect costs, in the tracked process too: the pages are armed again.
///
/// Returns as dirty_collect().
#[unsafe(no_mangle)]
pub extern "C" fn dirty_peek(handle: i64) -> i64 {
    find(handle, Tracker::peek)
}

/// dirty_peek() for length bytes from start alone.
///
/// Returns as dirty_collect_range().
#[unsafe(no_mangle)]
pub extern "C" fn dirty_peek_range(handle: i64, start: usize, length: libc::size_t) -> i64 {
    find_in(handle, start, length, Tracker::peek_range)
}

/// Take the next extents that the last collect or peek found, in order of addresses, at most capacity of them; call it
/// until it returns 0. Each extent is given out once, also if several threads read in parallel. out may be watched memory.
///
/// Returns how many were stored, 0 when all have been read, or -EFAULT (out is NULL), -EINVAL (out is not aligned,
/// capacity is 0 or greater than memory), -EBADF, -EXDEV.
///
/// # Safety
/// out may be written capacity times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dirty_read(handle: i64, out: *mut Extent, capacity: libc::size_t) -> i64 {
    on_session(handle, |session| {
        check_place(out, "dirty_read: out")?;
        if capacity == 0 || capacity > isize::MAX as usize / size_of::<Extent>() {
            return Err(Failure::new(libc::EINVAL, format!("dirty_read: no array has {capacity} extents")));
        }
        // SAFETY: aligned, and as the caller promises.
        count(unsafe { session.read(out, capacity) })
    })
}

/// Forget the extents of the last collect or peek that are unread: for a caller that starts over and does not need them.
///
/// Returns the number of extents forgotten, or -EBADF, -EXDEV.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_discard(handle: i64) -> i64 {
    on_session(handle, |session| count(session.discard()))
}

/// The name of the back end at work: a constant. NULL for a handle that names no tracker; dirty_last_error() says
/// why.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_backend(handle: i64) -> *const c_char {
    call_text(|| {
        handle::table(handle)?.with(handle, |session| Ok(capability::name(session.tracker.backend())))
    })
}

/// What a back end can and cannot do, whether it works here or not. Set out->size first. The texts are constants.
///
/// Returns 0 or -EFAULT (an argument is NULL), -EINVAL (no such back end, out is not aligned or out->size too small),
/// -E2BIG (out->size was not set).
///
/// # Safety
/// backend is NULL or a text that ends with a zero; out may be written as far as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dirty_capabilities(backend: *const c_char, out: *mut Capabilities) -> c_int {
    call(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(backend) };
        let name = name.ok_or_else(|| Failure::new(libc::EFAULT, "dirty_capabilities: backend is NULL"))?;
        check_place(out, "dirty_capabilities: out")?;
        // SAFETY: aligned, and as the caller promises.
        unsafe { capability::fill(capability::parse(name)?, out)? };
        Ok(0)
    })
}

/// Try every back end on scratch memory of the own process, cheapest first, and call visit for each, with why it does
/// not work here, or NULL if it does. Both texts live until visit returns. visit may call any function of this header;
/// it must return (no longjmp, no C++ exception).
///
/// Returns how many work, or -EFAULT (visit is NULL).
#[unsafe(no_mangle)]
pub extern "C" fn dirty_survey(
    visit: Option<extern "C" fn(context: *mut c_void, backend: *const c_char, rejected: *const c_char)>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visit = visit.ok_or_else(|| Failure::new(libc::EFAULT, "dirty_survey: visit is NULL"))?;
        let mut working = 0;
        for finding in libdirty::survey() {
            let name = capability::name(finding.backend);
            if let Some(why) = finding.rejected {
                let mut why = why.into_bytes();
                why.retain(|byte| *byte != 0);
                why.push(0);
                visit(context, name, why.as_ptr().cast());
            } else {
                working += 1;
                visit(context, name, std::ptr::null());
            }
        }
        Ok(working)
    })
}

/// One of enum dirty_reason in words: a constant. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_reason_text(reason: u32) -> *const c_char {
    reason::text(reason)
}

/// 1 if pages reported for this reason are to be zeros in the copy, or a hole, even if something else can be read there
/// by now; 0 if not.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_reason_is_zero(reason: u32) -> c_int {
    reason::is_zero(reason).into()
}

/// 1 if pages reported for this reason are there to be read, 0 if nothing is mapped there any more.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_reason_is_mapped(reason: u32) -> c_int {
    reason::is_mapped(reason).into()
}

/// The message of the last call that failed in this thread, at most 1023 bytes; empty if none did. It stays until
/// another call fails in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dirty_last_error() -> *const c_char {
    failure::last()
}

fn not_open(fd: c_int, error: &std::io::Error) -> Failure {
    Failure::new(
        error.raw_os_error().unwrap_or(libc::EIO),
        format!("dirty_open_fd: descriptor {fd}: {error}"),
    )
}

fn on_tracker(handle: i64, work: impl FnOnce(&mut Tracker) -> libdirty::Result<()>) -> c_int {
    on_session(handle, |session| {
        work(&mut session.tracker)?;
        Ok(0)
    })
}

fn find(handle: i64, find: impl FnOnce(&mut Tracker, &mut Dirty) -> libdirty::Result<()>) -> i64 {
    on_session(handle, |session| count(session.find(find)?))
}

fn find_in(
    handle: i64,
    start: usize,
    length: libc::size_t,
    find_in: fn(&mut Tracker, PageRange, &mut Dirty) -> libdirty::Result<()>,
) -> i64 {
    on_session(handle, |session| {
        let range = PageRange::from_length(start, length)?;
        count(session.find(|tracker, dirty| find_in(tracker, range, dirty))?)
    })
}

fn on_session<T: From<c_int>>(handle: i64, work: impl FnOnce(&mut Session) -> Outcome<T>) -> T {
    call_unstopped(|| handle::table(handle)?.with(handle, work))
}

fn count(count: usize) -> Outcome<i64> {
    Ok(i64::try_from(count).expect("a list in memory is shorter"))
}

/// # Safety
/// NULL, or a text that ends with a zero and stays for as long as it is used.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

fn check_place<T>(place: *const T, what: &str) -> Outcome<()> {
    if place.is_null() {
        return Err(Failure::new(libc::EFAULT, format!("{what} is NULL")));
    }
    if !place.is_aligned() {
        return Err(Failure::new(libc::EINVAL, format!("{what} is not aligned")));
    }
    Ok(())
}
