// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read from the kernel: whether it has soft-dirty itself, and which memory is watched.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::iovec;
use libdirty::pagemap::{Entry, Regions, Scan, scan};
use libdirty::{PageRange, page_size};
use linux_raw_sys::general::PAGE_IS_WPALLOWED;

use crate::real;
use crate::settings::settings;

/// The error of the last call that failed in this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Fill `bytes` from the program's memory, by the kernel, for the address may be bad; `None` then.
pub(crate) fn copy_in(address: usize, bytes: &mut [u8]) -> Option<()> {
    let ours = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let theirs = iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: `ours` may be written that far; the other is only read, in this process.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
    (copied == bytes.len() as isize).then_some(())
}

/// Store `bytes` in the program's memory, which is the caller's to change, in the same way.
pub(crate) fn copy_out(address: usize, bytes: &[u8]) -> Option<()> {
    let ours = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let theirs = iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: `ours` is only read; the program has given the address to be written.
    let copied =
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
    (copied == bytes.len() as isize).then_some(())
}

/// An address without what the processor ignores of it, as the kernel takes it.
pub(crate) fn untagged(address: u64) -> u64 {
    if cfg!(target_arch = "aarch64") { ((address << 8).cast_signed() >> 8).cast_unsigned() } else { address }
}

/// Fill `entries` with those of the pages from `start` on; they stay as they are where there are none.
pub(crate) fn entries(pagemap: c_int, start: u64, entries: &mut [Entry]) {
    let length = size_of_val(entries);
    // SAFETY: so many bytes to be filled, any of which make entries.
    unsafe { real::pread64(pagemap, entries.as_mut_ptr().cast(), length, offset_of(start as usize)) };
}

/// Whether this library answers, in place of the kernel: the kernel has no soft-dirty, or "force" says so.
pub(crate) fn is_answered_here() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static ANSWERED: AtomicU8 = AtomicU8::new(UNKNOWN);

    match ANSWERED.load(Ordering::Relaxed) {
        UNKNOWN => {
            let settings = settings();
            let here = !settings.off && (settings.force || !has_soft_dirty());
            ANSWERED.store(if here { YES } else { NO }, Ordering::Relaxed);
            here
        }
        known => known == YES,
    }
}

/// Whether the kernel has soft-dirty, by trying: with it, a page just mapped and written carries the bit.
/// Where it cannot be tried, the kernel has none that this program could read.
fn has_soft_dirty() -> bool {
    let length = page_size();
    let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping, at an address of the kernel's choice, written and unmapped here.
    unsafe {
        let page = libc::mmap(null_mut(), length, access, private, -1, 0);
        if page == libc::MAP_FAILED {
            return false;
        }
        page.cast::<u8>().write_volatile(1);
        let mut entry = Entry::default();
        let fd = real::open64(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0);
        if fd >= 0 {
            real::pread64(fd, (&raw mut entry).cast(), size_of::<Entry>(), offset_of(page as usize));
            real::close(fd);
        }
        libc::munmap(page, length);
        entry.is_soft_dirty()
    }
}

/// Where in a pagemap the entry of the page at `address` is.
fn offset_of(address: usize) -> i64 {
    (address / page_size() * size_of::<Entry>()) as i64
}

/// Pass to `found` the runs of pages (by number) within `pages` that a userfaultfd watches asynchronously, in order.
///
/// The mark in an entry alone is no proof: one left behind by `mremap` (before Linux 6.13) or set by a program's
/// own userfaultfd does not go away with a write.
///
/// # Errors
/// Those of the ioctl; `found` has got the runs up to there.
pub(crate) fn watched_pages(
    pagemap: c_int,
    pages: Range<u64>,
    found: impl FnMut(Range<u64>),
) -> io::Result<()> {
    scanned_pages(pagemap, pages, Scan { all: PAGE_IS_WPALLOWED, ..Scan::default() }, found)
}

/// Pass to `found` the runs of pages (by number) within `pages` that are mapped, whether there is content or not.
///
/// # Errors
/// Those of the ioctl; `found` has got the runs up to there.
pub(crate) fn mapped_pages(
    pagemap: c_int,
    pages: Range<u64>,
    found: impl FnMut(Range<u64>),
) -> io::Result<()> {
    scanned_pages(pagemap, pages, Scan::default(), found)
}

fn scanned_pages(
    pagemap: c_int,
    pages: Range<u64>,
    what: Scan,
    mut found: impl FnMut(Range<u64>),
) -> io::Result<()> {
    let size = page_size();
    let address = |page: u64| (page as usize).saturating_mul(size);
    let Ok(range) = PageRange::new(address(pages.start), address(pages.end)) else {
        return Ok(()); // no memory of a process
    };
    // SAFETY: the program's descriptor, open while it reads from it.
    let pagemap = unsafe { BorrowedFd::borrow_raw(pagemap) };
    scan(pagemap, range, what, &mut Regions::new(64), |run, _| {
        found((run.start() / size) as u64..(run.end() / size) as u64);
    })
}
